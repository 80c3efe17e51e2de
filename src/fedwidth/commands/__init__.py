"""The commands behind `fedwidth`, grouped by what they do."""
