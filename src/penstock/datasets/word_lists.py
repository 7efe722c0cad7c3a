"""Word lists for synthetic text, by part of speech.

The sentence grammar relies on three properties: every noun forms its plural with `s`, the first letter of a noun or
adjective decides between `a` and `an`, and verbs are in the past tense, which is the same for every subject.
"""

from __future__ import annotations

__all__ = ["ADJECTIVES", "ADVERBS", "INTRANSITIVE", "NOUNS", "NUMBERS", "PEOPLE", "PLACES", "TIMES", "TRANSITIVE"]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _listed(
    """
    account acorn album almond anchor angle animal answer apple apron archive arrow article badge bag ball banana band
    banner barrel basket beam bean bed bell belt bicycle bill bird blanket block board boat bolt bone book boot bottle
    bowl bracelet brick bridge broom bucket bug bulb button cabin cabinet cable cake calendar camera canal candle canoe
    cap card carpet carrot cart castle cat catalog ceiling chain chair chapter chart chimney circle clock cloak cloud
    coat coin collar color column comet contract cookie corner costume counter cow cradle crayon crow crown cup curtain
    cushion desk detail device diagram diamond dinner document dog doll donkey door dot dragon drawer drawing dream drum
    duck eagle ear egg elbow elephant emerald engine envelope eraser error event example fact falcon feather fence fern
    fiddle field figure finger fire flag flame flower flute folder forest fork form fountain frame friend frog fruit
    game garden garment gate gear gift giraffe glove goat grape graph guitar hammer handle harp hat hawk headline heart
    hedge helmet hen hill hinge hook horn horse icicle idea image insect instrument invoice iron island jacket jar jewel
    joke journal jug kettle key kitten kite knot label ladder lake lamp lantern lemon lesson letter level lever lid line
    lion list lizard lock log lotion magnet map maple marble mask medal melon menu message metal meter method mirror
    model moment monkey moon motor mountain mug mushroom napkin needle nest net newspaper notebook notice novel number
    oak oar object olive onion orange orchid organ oven owl package paddle page pail painting pan panel paper parcel
    parrot path pattern pear pearl pebble pedal pen pencil pepper piano picture pie pigeon pillow pin pipe plan plane
    planet plant plate plot plum pocket poem pond portrait postcard pot present problem program project promise puddle
    pump pumpkin puppet puzzle question quilt rabbit radio raft rail rainbow raven reason recipe record report result
    ribbon riddle ring river road robe robin rock rocket roof room root rope rose rug rule ruler saddle sail salad
    sample sandal satellite saucer scale scarf screen screw seal seat seed sentence shadow shape shawl sheet shell
    shield ship shirt shoe shovel signal sled sleeve snail snake sock song soup spark sparrow spear spider spoon spring
    square stair stamp star statue step stick stone stove stream street string suitcase sun swan sweater symbol system
    table tail tape target tea teapot telescope tent thimble thread ticket tiger tile timber tin tool towel tower toy
    track train tray treasure tree triangle trumpet trunk tulip tunnel turkey turnip turtle umbrella urn valley vase
    vehicle vest village vine violin volcano wagon wall wallet walnut wave wheel whistle wind window wing wire word
    yacht yard zebra zipper
    """
)

PEOPLE = _listed(
    """
    actor artist author baker banker barber builder butcher captain carpenter chef clerk cook cousin dancer dentist
    designer doctor driver editor engineer farmer fisher gardener guard guest guide hunter inspector inventor judge
    juror king lawyer librarian manager mason mayor merchant miller miner musician neighbor nurse officer painter pilot
    planner player plumber poet potter printer queen ranger reader reporter rider sailor scholar scientist sculptor
    senator shepherd singer sister soldier stranger student surgeon tailor teacher tenant trader traveler tutor uncle
    visitor waiter walker warden weaver worker writer
    """
)

PLACES = _listed(
    """
    airport apartment attic avenue bakery balcony bank barn basement bay beach cafe campus cathedral cave cellar chapel
    cinema cliff coast college cottage court courtyard desert dock farm ferry forge gallery garage glacier greenhouse
    hall hallway hangar harbor highway hospital hotel inn kitchen laboratory lighthouse lobby market meadow mill mine
    monastery museum nursery office orchard palace park pasture pavilion pier plateau plaza port prairie quarry railway
    ranch restaurant ridge school seaside shed shelter shore shop stable stadium station studio summit swamp temple
    terrace theater town trail vault vineyard warehouse waterfall wharf workshop
    """
)

ADJECTIVES = _listed(
    """
    able absent active actual afraid ageless alert amber ample ancient angry annual anxious apt arid aware awkward bare
    basic beautiful bent best big bitter black blank bleak blue blunt bold brave brief bright brisk broad broken bronze
    brown busy calm careful cautious central certain charming cheap cheerful chief clean clear clever close cloudy
    clumsy coarse cold common complete complex cool correct costly cosy crisp crooked cruel curious curly current daily
    damp dark deep delicate dense different dim direct distant double dry dull dusty eager early east easy elder
    electric elegant empty endless enormous entire equal even exact faint fair faithful familiar famous fancy fast final
    fine firm first flat fluffy foggy foreign formal fragile free fresh friendly frozen full funny gentle giant glad
    gleaming global gold golden good graceful grand gray great green grim handy happy hard harsh hasty heavy helpful
    hidden high hollow hot humble icy ideal idle important inner innocent iron jolly joyful keen kind large last late
    lazy light little lively local lonely long loose loud lovely low loyal lucky magic main major mild modern modest
    narrow native natural neat new nice noble noisy normal northern obvious odd old open ordinary outer pale patient
    perfect plain pleasant plump polite poor popular pretty private proper proud public pure purple quick quiet rapid
    rare raw ready real red regular remote rich rigid ripe rough round royal rusty sad safe salty scarlet secret
    separate serious sharp shiny short shy silent silver simple single slender slight slim slow small smart smooth soft
    solid sour southern special splendid spotless square steady steep stiff still strange strict strong sturdy subtle
    sudden sunny sweet swift tall tame tender thick thin thirsty tidy tight timid tiny tired total tough tranquil true
    typical urgent vacant vague vast violet vivid warm wealthy weary western wet white wide wild windy wise wooden young
    """
)

TRANSITIVE = _listed(
    """
    accepted admired adored answered approached arranged avoided balanced blamed borrowed bought bounced broke brought
    brushed built buried carried carved caught changed chased checked chose cleaned climbed closed collected compared
    copied counted covered crossed crushed cut decorated defended delivered described designed destroyed discovered
    divided dragged drew dropped emptied enjoyed entered examined exchanged explained explored fetched filled finished
    fixed folded followed forgot found framed gathered greeted guarded guided handled heard held helped hid hired
    ignored improved inspected invented joined kept kicked kissed knew labeled left lifted liked lit loaded locked lost
    loved made marked measured mended mentioned missed moved named needed noticed observed offered opened ordered owned
    packed painted passed planned planted polished praised prepared pressed printed protected pulled pushed raised
    reached read recorded refused remembered removed repaired replaced reported rescued returned reviewed saved saw
    searched sent served shaped shared showed signed sold sorted stole stopped studied supported surrounded swept taught
    tested threw tied took touched traded trusted turned unlocked used visited wanted warned washed watched weighed
    welcomed wrapped wrote
    """
)

INTRANSITIVE = _listed(
    """
    agreed appeared arrived bloomed blinked bowed burned coughed cried crouched danced departed disappeared drifted
    fainted faded fell floated flew frowned gathered giggled glided glowed grew hesitated hummed hurried jumped knelt
    landed laughed leaned lingered listened marched melted nodded paused played pointed prayed ran rested returned
    rolled rose rushed sailed sang sank sat settled shivered shone sighed sketched skipped slept slid smiled sneezed
    spoke stood strolled struggled succeeded swam swayed talked thought traveled trembled turned vanished waited walked
    wandered wept whispered whistled woke worked yawned
    """
)

ADVERBS = _listed(
    """
    again alone already always badly barely boldly bravely briefly brightly calmly carefully clearly closely coldly
    daily deeply eagerly early easily fairly fast finally firmly forever freely gently gladly gracefully happily hardly
    here honestly kindly later lightly loudly nearby neatly never nicely often once openly patiently perfectly plainly
    politely promptly proudly quickly quietly rarely sadly safely seldom sharply silently simply slowly smoothly softly
    soon steadily still strangely suddenly sweetly swiftly there together twice warmly well wildly wisely
    """
)

NUMBERS = _listed("two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty")

TIMES = (
    "yesterday", "last night", "this morning", "in the evening", "at noon", "before dawn", "after dinner",
    "in early spring", "every summer", "one autumn", "late in winter", "on Monday", "on Tuesday", "on Friday",
    "last Sunday", "at midnight", "a week ago", "long ago", "in March", "by April", "in October", "during the storm",
    "after the rain", "once more", "at first", "in the end", "most days", "from time to time", "an hour later",
    "just then", "that year", "as always", "without a word", "to this day", "at sunset",
)  # fmt: skip
