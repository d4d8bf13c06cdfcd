"""Draft trees on SGLang's DFLASH: settings, patches, the draft and verify step, exact acceptance."""
