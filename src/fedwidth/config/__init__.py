"""Settings and recipes: read, checked, explained, and made into what a run is built of."""

from fedwidth.config.read import read_settings, recipe_names
from fedwidth.config.recipe import Recipe, Variant
from fedwidth.config.write import settings_toml

__all__ = ["Recipe", "Variant", "read_settings", "recipe_names", "settings_toml"]
