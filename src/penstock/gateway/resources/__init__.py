"""Reading of the resource file and of gateway.yaml into immutable snapshots."""
