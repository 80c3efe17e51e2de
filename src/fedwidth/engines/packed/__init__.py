"""Many runs of one model that train as one batch on one device."""
