"""Two methods as one: sub-models are chosen as the one says and trained as the other."""

from __future__ import annotations

from dataclasses import replace

from fedwidth.errors import OptionError
from fedwidth.methods.definition import Method
from fedwidth.methods.lookup.catalogue import methods

ONE_OF_THEM = {"change the first state": ("start",), "remember": ("init", "advance"), "close the round": ("close",)}
"""What only one of two combined methods may do, and the functions of a method that do it."""


def combine(choice: Method, rule: Method) -> Method:
    """A method that chooses sub-models as the one says and trains them as the other."""
    if choice.name == rule.name:
        return choice
    if rule.local is None or not rule.slices:  # what factors are trained with makes sense for factors alone
        trained = [name for name, method in methods().items() if method.local is not None and method.slices]
        raise OptionError(f"'{rule.name}' has no local rule to train with; local rules: {', '.join(trained)}")
    if (reason := rule.local.refuses(choice)) is not None:
        raise OptionError(f"'{choice.name}' cannot be trained as '{rule.name}': {reason}")
    if choice.local is not None:
        raise OptionError(f"'{choice.name}' has a local rule of its own, so it cannot be trained as '{rule.name}'")
    for what, functions in ONE_OF_THEM.items():
        if all(any(getattr(one, function) is not None for function in functions) for one in (choice, rule)):
            raise OptionError(f"'{choice.name}' cannot be trained as '{rule.name}': both {what} in their own way")
    for name in choice.options.keys() & rule.options.keys():
        if choice.options[name] is not rule.options[name]:
            raise OptionError(f"'{choice.name}' cannot be trained as '{rule.name}': both have an option '{name}'")
    return replace(
        choice,
        title=f"{choice.title} with {rule.title}",
        options={**rule.options, **choice.options},
        local=rule.local,
        start=choice.start or rule.start,
        init=choice.init or rule.init,
        advance=choice.advance or rule.advance,
        close=choice.close or rule.close,
        collect="updates" if "updates" in (choice.collect, rule.collect) else "sums",
        needs={**rule.needs, **choice.needs},
        values={**rule.values, **choice.values},
        made_of=(choice, rule),
    )
