"""Instructor: answers as objects of pydantic, by tools, by JSON and by a schema."""

import sys

import instructor
import openai
import pydantic


class Place(pydantic.BaseModel):
    """Where it is."""

    town: str


url = sys.argv[1]
ASKED = [{"role": "user", "content": "Where is the Munch museum?"}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
    place = client.chat.completions.create(model="agent", messages=ASKED, response_model=Place, max_retries=0)
    assert place.town == "Oslo", place
    print(mode.name, "ok")
client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none"))
partial = client.chat.completions.create_partial(model="agent", messages=ASKED, response_model=Place)
assert list(partial)[-1].town == "Oslo"
