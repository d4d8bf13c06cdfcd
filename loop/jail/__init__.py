"""The jail: agents run in bubblewrap with copies of two folders, no network, no keys, and limits; or not at all."""
