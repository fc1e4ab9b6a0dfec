"""The laboratory: machines built from Linux network namespaces with shaped links, on which plans run."""
