"""The library's operations, one folder each: api, primitive, kernels, config, reference."""
