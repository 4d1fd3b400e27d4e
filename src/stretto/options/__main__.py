"""Print the page of options, as Markdown."""

from stretto.options.documenting import page

if __name__ == "__main__":
    print(page(), end="")
