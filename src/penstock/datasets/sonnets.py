"""Lines of Shakespeare's sonnets, for `--prompt-corpus sonnet`."""

from __future__ import annotations

__all__ = ["LINES"]

LINES = tuple(
    line.strip()
    for line in """
    Shall I compare thee to a summer's day?
    Thou art more lovely and more temperate:
    Rough winds do shake the darling buds of May,
    And summer's lease hath all too short a date;
    Sometime too hot the eye of heaven shines,
    And often is his gold complexion dimm'd;
    And every fair from fair sometime declines,
    By chance or nature's changing course untrimm'd;
    But thy eternal summer shall not fade,
    Nor lose possession of that fair thou ow'st;
    Nor shall death brag thou wander'st in his shade,
    When in eternal lines to time thou grow'st:
    So long as men can breathe or eyes can see,
    So long lives this, and this gives life to thee.
    When, in disgrace with fortune and men's eyes,
    I all alone beweep my outcast state,
    And trouble deaf heaven with my bootless cries,
    And look upon myself and curse my fate,
    Wishing me like to one more rich in hope,
    Featur'd like him, like him with friends possess'd,
    Desiring this man's art and that man's scope,
    With what I most enjoy contented least;
    Yet in these thoughts myself almost despising,
    Haply I think on thee, and then my state,
    Like to the lark at break of day arising
    From sullen earth, sings hymns at heaven's gate;
    For thy sweet love remember'd such wealth brings
    That then I scorn to change my state with kings.
    When to the sessions of sweet silent thought
    I summon up remembrance of things past,
    I sigh the lack of many a thing I sought,
    And with old woes new wail my dear time's waste:
    Then can I drown an eye, unused to flow,
    For precious friends hid in death's dateless night,
    And weep afresh love's long since cancell'd woe,
    And moan the expense of many a vanish'd sight:
    Then can I grieve at grievances foregone,
    And heavily from woe to woe tell o'er
    The sad account of fore-bemoaned moan,
    Which I new pay as if not paid before.
    But if the while I think on thee, dear friend,
    All losses are restored and sorrows end.
    Not marble, nor the gilded monuments
    Of princes, shall outlive this powerful rhyme;
    But you shall shine more bright in these contents
    Than unswept stone, besmear'd with sluttish time.
    When wasteful war shall statues overturn,
    And broils root out the work of masonry,
    Nor Mars his sword nor war's quick fire shall burn
    The living record of your memory.
    That time of year thou mayst in me behold
    When yellow leaves, or none, or few, do hang
    Upon those boughs which shake against the cold,
    Bare ruin'd choirs, where late the sweet birds sang.
    In me thou seest the twilight of such day
    As after sunset fadeth in the west,
    Which by and by black night doth take away,
    Death's second self, that seals up all in rest.
    In me thou see'st the glowing of such fire
    That on the ashes of his youth doth lie,
    As the death-bed whereon it must expire,
    Consumed with that which it was nourish'd by.
    This thou perceivest, which makes thy love more strong,
    To love that well which thou must leave ere long.
    Let me not to the marriage of true minds
    Admit impediments. Love is not love
    Which alters when it alteration finds,
    Or bends with the remover to remove:
    O no! it is an ever-fixed mark
    That looks on tempests and is never shaken;
    It is the star to every wandering bark,
    Whose worth's unknown, although his height be taken.
    Love's not Time's fool, though rosy lips and cheeks
    Within his bending sickle's compass come:
    Love alters not with his brief hours and weeks,
    But bears it out even to the edge of doom.
    If this be error and upon me proved,
    I never writ, nor no man ever loved.
    My mistress' eyes are nothing like the sun;
    Coral is far more red than her lips' red;
    If snow be white, why then her breasts are dun;
    If hairs be wires, black wires grow on her head.
    I have seen roses damask'd, red and white,
    But no such roses see I in her cheeks;
    And in some perfumes is there more delight
    Than in the breath that from my mistress reeks.
    I love to hear her speak, yet well I know
    That music hath a far more pleasing sound;
    I grant I never saw a goddess go;
    My mistress, when she walks, treads on the ground:
    And yet, by heaven, I think my love as rare
    As any she belied with false compare.
    From fairest creatures we desire increase,
    That thereby beauty's rose might never die,
    But as the riper should by time decease,
    His tender heir might bear his memory:
    When forty winters shall besiege thy brow,
    And dig deep trenches in thy beauty's field,
    Thy youth's proud livery, so gazed on now,
    Will be a tatter'd weed, of small worth held:
    When I do count the clock that tells the time,
    And see the brave day sunk in hideous night;
    When I behold the violet past prime,
    And sable curls all silver'd o'er with white;
    When lofty trees I see barren of leaves
    Which erst from heat did canopy the herd,
    When I consider every thing that grows
    Holds in perfection but a little moment,
    Weary with toil, I haste me to my bed,
    The dear repose for limbs with travel tired;
    But then begins a journey in my head,
    To work my mind, when body's work's expired:
    Like as the waves make towards the pebbled shore,
    So do our minutes hasten to their end;
    Each changing place with that which goes before,
    In sequent toil all forwards do contend.
    Since brass, nor stone, nor earth, nor boundless sea,
    But sad mortality o'er-sways their power,
    How with this rage shall beauty hold a plea,
    Whose action is no stronger than a flower?
    No longer mourn for me when I am dead
    Than you shall hear the surly sullen bell
    Give warning to the world that I am fled
    From this vile world, with vilest worms to dwell:
    They that have power to hurt and will do none,
    That do not do the thing they most do show,
    How like a winter hath my absence been
    From thee, the pleasure of the fleeting year!
    What freezings have I felt, what dark days seen!
    What old December's bareness every where!
    From you have I been absent in the spring,
    When proud-pied April dress'd in all his trim
    Hath put a spirit of youth in every thing,
    When in the chronicle of wasted time
    I see descriptions of the fairest wights,
    And beauty making beautiful old rhyme
    In praise of ladies dead and lovely knights,
    When my love swears that she is made of truth
    I do believe her, though I know she lies,
    Two loves I have of comfort and despair,
    Which like two spirits do suggest me still:
    My love is as a fever, longing still
    For that which longer nurseth the disease,
    """.strip().splitlines()
)
