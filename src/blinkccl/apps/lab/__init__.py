"""The laboratory: machines built from Linux network namespaces, whose links are shaped, for plans to run on."""
