"""Print docs/reference/options.md."""

from stretto.options.documenting import page

if __name__ == "__main__":
    print(page(), end="")
