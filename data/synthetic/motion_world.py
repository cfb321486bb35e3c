"""Generated preference pairs about short films of moving shapes.

Every item depends only on the level of difficulty, the number of frames, the seed, the split and
its index. Splits share no film.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmrm.data.encoded_video import Video
from mmrm.data.preference import Message, Preference, Truth, text_responses
from mmrm.data.storage.files import digest
from mmrm.data.synthetic.film_questions import FILM_QUESTION_TYPES, FilmCategory, FilmQuery
from mmrm.data.synthetic.films import Film, Played, drawn_frames, encoded, played_frames
from mmrm.data.synthetic.plots import random_stage
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scenes import LEVELS, SPLITS, bucket_of_facts
from mmrm.data.synthetic.wording import WordedAnswer

MOTION_REVISION = "98e3398a2dd5a00b"
"""The revision of the generated films. A run resumes only with data of the same revision.

Change it whenever an item changes by a character or a pixel, and never otherwise:
`test_the_films_belong_to_their_revision` compares it with a digest of the data.
"""


@dataclass(frozen=True, slots=True)
class MotionItem:
    """A generated preference pair about a film, with everything that is known about it."""

    source: str
    """The name of the data set and level, such as "shapes-motion-demo"."""
    identity: str
    kind: str
    """The question type: a key of FILM_QUESTION_TYPES."""
    category: FilmCategory
    question: str
    true: WordedAnswer
    """The right answer."""
    false: WordedAnswer
    """The wrong answer, which is right for `twin`."""
    chosen: str
    """A phrasing of `true`."""
    rejected: str
    """A phrasing of `false`."""
    film: Film
    twin: Film
    """A film for which `rejected` would be right."""

    def video(self, played: Played) -> bytes:
        """Return the film as a video file, played in the given way."""
        return encoded(played_frames(drawn_frames(self.film), played))

    def preference(self, played: Played) -> Preference:
        """Return the item as a preference record, with the film as a video after the question.

        So the tokens of the video are computed by a model that has read what is asked.

        Args:
            played: The way in which the film is played. It changes nothing about the texts.
        """
        question: Message = {
            "role": "user",
            "content": [{"type": "text", "text": self.question}, {"type": "video"}],
        }
        return Preference(
            identity=self.identity,
            prompt=(question,),
            responses=text_responses(self.chosen, self.rejected),
            images=(),
            videos=(Video(self.video(played)),),
            source=self.source,
            category=self.kind,
            truth=Truth("exact", self.true.phrasings),
        )


class MotionGenerator:
    """A generator of preference pairs about films, each made from its index when requested."""

    def __init__(
        self,
        level: str,
        seed: int,
        split: str,
        num_frames: int,
        kinds: Sequence[str] | None = None,
    ) -> None:
        """Store the settings of the data set.

        Args:
            level: The level of difficulty, a key of LEVELS such as "demo".
            seed: Seed of everything that is drawn.
            split: A key of SPLITS such as "train". Splits share no film.
            num_frames: Number of frames of each film.
            kinds: Question types, drawn with equal probability; None takes all.
        """
        self.level = LEVELS[level]
        self.source = f"shapes-motion-{level}"
        self._split = split
        self._key = (seed, stable_hash(level), stable_hash(split), stable_hash(self.source))
        self._num_frames = num_frames
        self._kinds = tuple(FILM_QUESTION_TYPES) if kinds is None else tuple(kinds)

    def item(self, index: int) -> MotionItem:
        """Return the generated preference pair number `index`."""
        rng = Rng(*self._key, index)
        kind = rng.choice(self._kinds)
        film_query = self._film_query(rng, kind)
        film = film_query.film
        twin = film_query.twin
        true = film_query.query.true
        false = film_query.query.false
        question = rng.choice(film_query.query.questions)
        chosen = rng.choice(true.phrasings)
        rejected = rng.choice(false.phrasings)
        # Every word is fixed now. This coin alone decides which side is true.
        if rng.coin():
            film, twin = twin, film
            true, false = false, true
            chosen, rejected = rejected, chosen
        return MotionItem(
            source=self.source,
            identity=f"{self.source}-{self._split}:{index}",
            kind=kind,
            category=FILM_QUESTION_TYPES[kind].category,
            question=question,
            true=true,
            false=false,
            chosen=chosen,
            rejected=rejected,
            film=film,
            twin=twin,
        )

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change when the generated data change.

        They depend on the revision of the data and on all settings except the seed and the split.
        """
        settings = repr((self.level, self._num_frames, self._kinds))
        return digest(f"{settings} {MOTION_REVISION}")

    def _film_query(self, rng: Rng, kind: str) -> FilmQuery:
        """Return a random question of a type about a film that belongs to this split with its twin."""
        buckets = SPLITS[self._split]
        while True:
            stage = random_stage(rng, self.level, self._num_frames)
            film_query = FILM_QUESTION_TYPES[kind].ask(rng, stage)
            films = (film_query.film, film_query.twin)
            if all(bucket_of_facts(film.facts) in buckets for film in films):
                return film_query
