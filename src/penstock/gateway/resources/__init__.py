"""What the gateway serves and how: the resource file and gateway.yaml, read into immutable snapshots."""
