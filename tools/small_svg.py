"""Make drawings of matplotlib small enough to be committed."""

import re


def small(svg: str) -> str:
    """A drawing without what nobody sees: remarks, names of groups, digits after the second."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r"(font-family:|font: \S+) [^;\"]*", r"\1 sans-serif", svg)
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    short = {name: f"a{at}" for at, name in enumerate(used)}
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{short[m[1]]}"' if m[1] in used else "", svg)
    svg = re.sub(r'((?:href="|url\()#)([^")]+)', lambda m: m[1] + short[m[2]], svg)
    svg = re.sub(r"<[^>]*>", lambda tag: rounded(tag[0]), svg)  # labels between tags stay
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><").strip()
    while (bare := re.sub(r"<g>((?:(?!<g[ >]|</g>).)*)</g>", r"\1", svg)) != svg:
        svg = bare  # groups without attributes, from the innermost on
    styles = list(dict.fromkeys(re.findall(r' style="([^"]*)"', svg)))
    svg = re.sub(r' style="([^"]*)"', lambda m: f' class="c{styles.index(m[1])}"', svg)
    rules = "".join(f".c{at}{{{style}}}" for at, style in enumerate(styles))
    return svg.replace(">", f"><style>{rules}</style>", 1).replace("><", ">\n<") + "\n"


def rounded(tag: str) -> str:
    """A tag whose numbers have two digits behind the point, none of them an idle zero."""
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    return re.sub(r"(\.\d)0\b|\.00\b", r"\1", tag)
