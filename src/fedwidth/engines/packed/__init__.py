"""Many runs of one shape as one batch on one device."""
