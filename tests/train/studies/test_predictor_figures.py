"""The arithmetic of predictors: which questions are independent."""

from typing import Any

from mmrm.train.studies.predictor_figures import items_of_rows


def test_questions_about_one_image_are_of_one_item() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "how many?", "images": ["data:one"]},
        {"prompt": "which colour?", "images": ["data:one"]},
        {"prompt": "which colour?", "images": ["data:two"]},
        {"prompt": "what is 2 + 2?", "images": []},
        {"prompt": "what is 2 + 2?"},
        {"prompt": "what is 3 + 3?"},
    ]
    items = items_of_rows(rows)
    assert items[0] == items[1]
    assert items[3] == items[4]
    assert len(set(items.tolist())) == 4
