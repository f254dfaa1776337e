"""Check a method of one's own against the contract, before anything is trained."""

from focoop.api.registering import register
from focoop.api.settings import Overrides, Settings, configure, listed
from focoop.federation import RuleCheck, check_rules
from focoop.methods import Method, lookup
from focoop.scenario import build_scenario

# Ten classes of the packaged features, whose prompts are encoded in a blink.
QUICK = {"corrupted": [], "ood": [], "unknown_classes": 90}


def check_method(
    method: str | type[Method], config: Settings = None, overrides: Overrides = None
) -> list[RuleCheck]:
    """Check a method against the rules of the contract, on a few images, in some seconds.

    Args:
        method: A class derived from `focoop.Method`, which becomes known by its name as `register`
            makes it; the name of a method; or a file, `"./mine.py"`.
        config: Settings whose data and backbone it is tried on, as in `run`; by default ten
            classes of the packaged features.
        overrides: Settings that go above `config`, such as `{"method.context_tokens": 4}`.

    Returns:
        One entry per rule: `rule` in words, and `problem`, what is wrong and what to do; empty
        where the method keeps the rule.

    Raises:
        ConfigError: There is no such method, or a setting is unknown.
        MethodError: The file holds no method, or one that lacks a function.
        DataError: Images or features of `config` are missing.

    Example:
        ```python
        for check in focoop.check_method(Mine):
            print(check.rule, "-", check.problem or "kept")
        ```
    """
    if isinstance(method, str):
        name = method
    else:
        register(method)
        name = method.__name__.lower()
    chosen = config
    if config is None:
        chosen = {"data": {**QUICK, "with_patches": bool(lookup(name).patch_kind)}}
    named = [{"method.name": name}, *listed(overrides)]
    whole, _ = configure(chosen, named, use_tuned=False)
    scenario = build_scenario(whole)
    return check_rules(scenario.method, scenario.task, scenario.a_few_images())
