"""What SGLang loads: decides whether the plugin was asked for, applies an overlay, attests to it."""
