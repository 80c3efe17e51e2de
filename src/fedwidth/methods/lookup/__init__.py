"""How a method is found: by name or import path, combined of two, and again in another process."""
