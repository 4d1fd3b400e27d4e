"""The table of all figures, goals beside them."""


def markdown(document):
    """Lines of a table; the share is of the goal, above 1 where the goal is reached."""
    machine = document["machine"]
    versions = f"torch {machine['torch']}, Triton {machine['triton']}"
    yield f"{machine['gpu']}, {versions}, memory read at {machine['read_tb_s']:.2f} TB/s"
    yield ""
    yield "| part | test | | measured | goal | of the goal |"
    yield "|---|---|---|---|---|---|"
    for figure in document["figures"]:
        goal = "" if figure["goal"] is None else number(figure["goal"])
        yield (
            f"| {figure['part']} | {figure['test']} | {figure['who']} | {measured(figure)} | {goal} "
            f"| {share(figure)} |"
        )


def measured(figure):
    if figure["error"]:
        return figure["error"].replace("|", "/")
    return f"{number(figure['median'])} {figure['unit']}"


def share(figure):
    if figure["goal"] is None or not figure["median"]:
        return ""
    ratio = figure["median"] / figure["goal"]
    ratio = 1 / ratio if figure["unit"] in ("s", "ms") else ratio
    return f"**{ratio:.2f}**" if ratio >= 1 else f"{ratio:.2f}"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
