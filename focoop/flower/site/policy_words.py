"""A site's policy for people: a file of defaults with their meaning, and what a policy allows."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from focoop.federation import COUNTS
from focoop.fields import toml_value
from focoop.flower.site.policy import Policy, PrivacyPolicy


def policy_sentences(policy: Policy) -> list[str]:
    """Say in words what a policy allows, for the people of the site.

    Args:
        policy: The policy.

    Returns:
        A sentence each.
    """
    names = ", ".join(policy.methods) or "any method of focoop"
    lines = [
        f"Trains {names}, at most {policy.epochs} epochs a round, {policy.rounds} rounds and "
        f"{policy.views} random views of an image.",
        f"Reads this site's own images, and {_listed(policy.folders, 'no other folder')}; "
        f"named datasets: {_listed(policy.sets, 'none')}.",
        f"Takes messages up to {policy.megabytes_in:g} MB and answers with up to "
        f"{policy.megabytes_out:g} MB.",
        f"Sends no statistics of a class with fewer than {policy.least_images} images.",
        "Sends accuracies on its test images."
        if policy.accuracies
        else "Keeps accuracies on its test images.",
        f"Sends a sketch of the scores of {max(1, policy.least_images)} calibration images or "
        "more, once a run."
        if policy.sketches and policy.accuracies
        else "Keeps scores of calibration images.",
        "Lets models say which classes it holds."
        if policy.holdings
        else "Does not let models say which classes it holds.",
    ]
    if policy.run:
        lines.append(f"Takes part in the run of {policy.run} alone: no setting may differ.")
    lines += _privacy_sentences(policy.privacy)
    lines += [f"Allows {key}: {_rule_text(rule)}." for key, rule in policy.settings.items()]
    return lines


def _privacy_sentences(wanted: PrivacyPolicy) -> list[str]:
    noise = f"noise of at least {wanted.noise_at_least:g}" if wanted.noise_at_least else ""
    clip = f"changes of at most {wanted.clip_at_most:g}" if wanted.clip_at_most else ""
    asked = " and ".join(part for part in (noise, clip) if part)
    plain = "Lets updates leave without noise, if the run asks for none."
    lines = [f"Sends updates only with {asked}." if asked else plain]
    if wanted.epsilon_at_most:
        lines.append(
            "Sends no noised update that brings the epsilon of all of them above "
            f"{wanted.epsilon_at_most:g}."
        )
    if wanted.secure_sum:
        lines.append("Takes part in secure sums alone.")
    lines.append(f"Takes part in a secure sum of {wanted.parties_at_least} sites or more.")
    if set(wanted.counts) != set(COUNTS):
        lines.append(f"Sends class counts only as: {', '.join(wanted.counts)}.")
    return lines


def default_policy_toml(run: str = "") -> str:
    """The text of a policy file with every key at its default, each with its meaning.

    Args:
        run: a configuration file beside the policy that runs must equal; empty: any run.

    Returns:
        TOML that `Policy.read` takes; `focoop site check` shows what it means.
    """
    head = [
        "# This site's policy: what it does for a coordinator, and what it refuses, whatever is",
        "# asked. Edit it freely: it is yours, is read anew for every message and never sent.",
        "# `focoop site check` shows it in words and says whether a run keeps to it.",
        "",
    ]
    top = [entry for entry in fields(Policy) if entry.metadata]
    lines = head + [_line(entry, run if entry.name == "run" else entry.default) for entry in top]
    lines += ["", "[privacy]"] + [_line(entry, entry.default) for entry in fields(PrivacyPolicy)]
    lines += [
        "",
        "[settings]",
        "# Bounds of any other setting (`focoop config` lists them), such as:",
        '# "federation.batch_size" = { least = 1, most = 512 }',
        '# "data.template" = ["a photo of a {}."]',
    ]
    return "\n".join(lines) + "\n"


def _line(entry: Any, value: Any) -> str:
    return f"# {entry.metadata['doc']}\n{entry.name} = {toml_value(value)}"


def _rule_text(rule: Any) -> str:
    if isinstance(rule, list):
        return ", ".join(str(choice) for choice in rule) or "nothing"
    return " and ".join(f"at {name} {value}" for name, value in rule.items())


def _listed(names: Sequence[str], nothing: str) -> str:
    return ", ".join(names) or nothing
