"""The YAML file of `--config`: AIPerf's keys, translated to the values of the flags."""
