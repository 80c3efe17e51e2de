"""Parts whose layers are products of factors, or composed of a common basis: another kind than slices."""
