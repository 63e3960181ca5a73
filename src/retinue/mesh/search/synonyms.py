"""Words that people use for the same thing when they ask for a skill: a small own thesaurus.

One line, one group; a word may stand in several. They widen a query at a lower weight, never a card.
General words, none from a data set; what they gain on MetaTool is in `benchmarks/ranking.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from retinue.mesh.search.stemming import stem

_GROUPS = """
image picture photo photograph photography
drawing art artwork illustration sketch
movie film cinema
video clip footage
song track music tune playlist
speech voice audio spoken
podcast episode
transcript transcribe transcription caption subtitle
buy purchase shop shopping order
sell sale vendor
price cost fee pricing
cheap discount deal coupon bargain affordable
invoice bill billing payment pay
car vehicle automobile auto
house home property apartment estate
rent rental lease
job career employment vacancy hiring recruit
resume cv curriculum
doctor physician medical medicine health clinical
illness disease sickness symptom
drug medication pharmacy
lawyer attorney legal law
contract agreement
money finance financial
stock share equity invest investment
crypto cryptocurrency bitcoin blockchain
currency exchange forex
bank banking account
loan mortgage credit
tax taxes
trip travel journey vacation holiday itinerary tour
flight airline plane airport
train railway bus transit transport
hotel accommodation lodging
restaurant dining eatery
recipe cook cooking dish
food meal diet nutrition
weather forecast temperature climate
news headline headlines
article post blog
book novel reading
story tale fiction
author writer
research paper academic scholarly scientific
study learn learning education course lesson tutorial
teacher tutor instructor
student pupil
translate translation language
summarize summary abstract digest condense
write compose draft
rewrite paraphrase rephrase polish reword
proofread grammar spelling
explain describe description explanation
find search locate lookup query
fetch retrieve download get
upload send transfer
create generate build produce
delete remove erase drop
change edit modify update
add insert append
rename move
copy duplicate clone
list enumerate
count number total
sort order rank
filter select
merge combine join
split divide
fix repair debug solve
bug error defect issue fault
test check verify validate
review inspect audit assess evaluate
monitor watch observe track
compare comparison versus difference
convert conversion transform
format layout pretty
parse extract
calculate compute calculation math mathematics arithmetic
equation algebra formula
statistics statistical analytics analysis analyze
predict prediction forecast estimate
classify classification categorize label tag
chart graph plot diagram visualization
map location place geographic geography
address street postal zip
route direction navigation
distance far near nearby
website site webpage web
url link
crawl scrape scraper
file document
directory folder
spreadsheet excel csv table
repository repo git
commit branch
code program programming software source script
function method
library package dependency
compile build
run execute launch start
stop halt cancel abort
deploy release publish ship
container docker image
server host machine
cloud hosting
database db sql
schema structure
cache memory
log logging trace
config configuration settings
api endpoint interface
email mail inbox
message chat conversation messaging
notify notification alert
phone call telephone
meeting appointment calendar schedule event
time clock hour date
task todo reminder
note memo
plan planning roadmap
project milestone
team group
user customer client
person people contact
company business firm enterprise corporation
charity nonprofit donation
gift present
game play gaming
puzzle riddle quiz trivia
joke humor funny meme
quote saying
sport football soccer
exercise workout fitness
baby child kid
animal pet
plant garden
clothes clothing fashion apparel outfit
brand logo
advertisement ad ads marketing advertising
seo keyword
rating opinion feedback
recommend suggest recommendation suggestion advice
horoscope astrology zodiac
astronomy space planet
earthquake seismic
ai artificial llm
question answer ask
password secret credential
login auth authentication authenticate
permission access authorization
encrypt encryption cipher
hash checksum digest
secure security vulnerability
random dice
"""


def _spread() -> Mapping[str, tuple[str, ...]]:
    meant: dict[str, dict[str, None]] = {}
    for line in _GROUPS.split("\n"):
        group = dict.fromkeys(stem(word) for word in line.split())
        for one in group:
            meant.setdefault(one, {}).update(group)
    return {one: tuple(other for other in others if other != one) for one, others in meant.items()}


SYNONYMS: Mapping[str, tuple[str, ...]] = _spread()
"""Of each stem, the stems of words used for the same thing."""
