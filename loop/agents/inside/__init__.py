"""Programs that are copied into the jail and run there, each as a single file without this package."""
