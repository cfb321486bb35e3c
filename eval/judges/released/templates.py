"""Prompts of released judges, word for word from their authors' code, and readers of their answers.

The repository, its commit and the file are named below each prompt. A reader is a function that
returns the verdict in a judge's text. Like the authors' scripts, the readers accept an answer in
the form that the prompt requires. For other texts they return None or NaN, and the texts count as
unparsable; the authors' scripts guess a verdict there, as the docstrings describe.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from mmrm.data.errors import RecordError
from mmrm.data.preference import Message, Response, media_parts
from mmrm.data.prompts import filled, question
from mmrm.data.scanning import contents_between
from mmrm.eval.candidates import Candidates, Side

OPENING_TAG = re.compile("<answer>")
CLOSING_TAG = re.compile("</answer>")
IS_BETTER = re.compile(r"Answer ([12]) is better")
OVERALL = re.compile(r"Overall Judgment\W*+Answer ([12]) is better")
POSITION = re.compile(r"\b[12]\b")
DIGITS = re.compile(r"\d+")
UNIT = r"\s*(0(?:\.\d+)?|1(?:\.0+)?)\s*"
SCORE = re.compile(rf"\\box(?:es|ed)?\{{{UNIT}\}}|<answer>{UNIT}</answer>|\A{UNIT}\Z")
"""A number from 0 to 1 in a box, in the answer tag, or as the complete text."""


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """A prompt that shows two responses, after the images."""

    text: str
    read: Callable[[str], Side | None]
    """Returns the position of the response that a judgement names, 0 for the first shown and 1 for
    the second; None if it names none."""

    def ask(self, pair: Candidates, first: Side) -> tuple[Message, ...]:
        """Return the conversation that shows two responses, the one with index `first` first."""
        contents = {
            "question": Response.of_text(question(pair.prompt)),
            "first": pair.responses[first],
            "second": pair.responses[1 - first],
        }
        prompt_images = media_parts(pair.prompt)
        return ({"role": "user", "content": [*prompt_images, *filled(self.text, contents)]},)


@dataclass(frozen=True, slots=True)
class PointTemplate:
    """A prompt with one response that requires a number as the answer."""

    text: str
    read: Callable[[str], float]
    """Returns the score in a judgement; NaN if it has none."""
    mark: str = ""
    """A text that stands for the images and begins the question. The images themselves then follow
    the text. If it is empty, the images come before the text."""

    def ask(self, candidates: Candidates, response: Response) -> tuple[Message, ...]:
        """Return the conversation that shows one response to the prompt of `candidates`.

        Raises:
            RecordError: The response has images, and the images of the prompt would follow them.
        """
        if self.mark and (response.images or response.videos):
            raise RecordError(
                f"{candidates.identity}: a response has images or videos, and this judge's prompt puts the "
                "images of the question after the responses, so that it judges texts alone. Use "
                "another judge."
            )
        prompt_images = media_parts(candidates.prompt)
        question_text = question(candidates.prompt)
        is_unmarked = self.mark.strip() not in question_text
        if prompt_images and self.mark and is_unmarked:
            question_text = self.mark + question_text
        contents = {"question": Response.of_text(question_text), "response": response}
        parts = filled(self.text, contents)
        content = [*parts, *prompt_images] if self.mark else [*prompt_images, *parts]
        return ({"role": "user", "content": content},)


def answer_tag(judgement: str) -> Side | None:
    """Return the position of the response that the first answer tag names; None if it names none.

    Source: R1-Reward 3693413, inference/VL-Reward-Bench/r1_reward.py. If there is no tag, that
    script takes the last 1 or 2 of the text, and for all other texts the second response.
    """
    tag_contents = contents_between(judgement, OPENING_TAG, CLOSING_TAG)
    if not tag_contents:
        return None
    return _single_position({tag_contents[0].strip()})


def answer_is_better(judgement: str) -> Side | None:
    """Return the position of the response in the sentence "Answer N is better".

    The sentence must be in the last answer tag, or anywhere in a text without tags. Returns None if
    there is no such sentence, or one for each response. UnifiedReward's scripts only look for the
    right sentence, so that a text with both sentences is always right there.
    """
    tag_contents = contents_between(judgement, OPENING_TAG, CLOSING_TAG)
    verdict = tag_contents[-1] if tag_contents else judgement
    return _single_position(set(IS_BETTER.findall(verdict)))


def boxed(judgement: str) -> Side | None:
    r"""Return the position of the response that the last \boxed{} names; None if it names none.

    If there is no box, the last sentence "Overall Judgment: Answer N is better" is read.
    LLaVA-Critic-R1's prompt requires both. Its authors publish no reader, so this reader is ours.
    """
    if "\\boxed{" in judgement:
        after_last_box = judgement.rpartition("\\boxed{")[2]
        box_content = after_last_box.partition("}")[0]
        return _single_position(set(POSITION.findall(box_content)))
    last_verdict = OVERALL.findall(judgement)[-1:]
    return _single_position(set(last_verdict))


def _single_position(numbers: set[str]) -> Side | None:
    """Return the position 0 for {"1"} and 1 for {"2"}, and None for all other sets.

    `numbers` are the numbers of the responses that a judgement names.
    """
    if numbers == {"1"}:
        return 0
    if numbers == {"2"}:
        return 1
    return None


def final_score(judgement: str) -> float:
    """Return the first integer after the last "Final Score:"; NaN if there is none.

    Source: UnifiedReward ff6f520,
    preference_data_construction/image_understanding/infer+sift.py. If these words are missing, that
    script takes the first number of the text, or 0 if the text has none.
    """
    _, heading, after_heading = judgement.rpartition("Final Score:")
    if not heading:
        return math.nan
    match = DIGITS.search(after_heading)
    return float(match[0]) if match else math.nan


def thinking_score(judgement: str) -> float:
    r"""Return the number from 0 to 1 in a \box{} or in an answer tag, or that is the complete text.

    Returns NaN if there is none. Source: SophiaVL-R1 a818494, verl/workers/reward/custom.py. For
    other texts, that script takes a 0 or 1 anywhere in the text, then a number of wrong steps, and
    otherwise 0.
    """
    match = SCORE.search(judgement)
    if match is None:
        return math.nan
    # Each of the three forms has its own group. Exactly one of them matched.
    [number] = [group for group in match.groups() if group is not None]
    return float(number)


UNIFIED_REWARD = (
    "You are given an image and a question related to it. Your job is to evaluate the two responses based on these five "
    "factors:\n\n"
    "1. Accuracy of Object Descriptions: Review how accurately the objects are described in the responses, ensuring they "
    "match those in the ground truth. Be mindful of irrelevant or incorrect objects being mentioned.\n\n"
    "2. Relationship Between Objects: Check if the response properly describes how the objects relate to each other, "
    "reflecting their actual positions or interactions, as seen in the image.\n\n"
    "3. Description of Attributes: Assess how well the response captures the attributes (e.g., size, color, shape) of the "
    "objects in the image, in line with the ground truth.\n\n"
    "4. Helpfulness: Consider whether the response offers useful information that enhances the understanding of the image. "
    "Does it add context or provide extra insights? Also, evaluate whether it follows the instructions given in the prompt.\n\n"
    "5. Ethical Concerns: Review the response to ensure it avoids sensitive, harmful, or inappropriate content. The "
    "response should be fair, respect privacy, and be free of bias or offensive material.\n\n"
    "After evaluating both answers, determine which one is better based on these factors and clearly state your decision, "
    "such as 'Answer 1 is better' or 'Answer 2 is better.'\n\n"
    "Question: {question}\n"
    "Answer 1: {first}\n"
    "Answer 2: {second}\n"
)
"""CodeGoat24/UnifiedReward ff6f520, benchmark_evaluation/Qwen_evaluation/test_qwen_vlrewardbench.py."""

UNIFIED_REWARD_POINTS = (
    "\n"
    "            You are provided with an image and a question for this image. Please review the corresponding response "
    "based on the following 5 factors:\n\n"
    "            1. Accuracy in Object Description:  \n"
    "            Evaluate the accuracy of the descriptions concerning the objects mentioned in the ground truth answer.  \n"
    "            Responses should minimize the mention of objects not present in the ground truth answer, and inaccuracies "
    "in the description of existing objects.\n\n"
    "            2. Accuracy in Depicting Relationships:  \n"
    "            Consider how accurately the relationships between objects are described compared to the ground truth answer.  \n"
    "            Rank higher the responses that least misrepresent these relationships.\n\n"
    "            3. Accuracy in Describing Attributes:  \n"
    "            Assess the accuracy in the depiction of objects' attributes compared to the ground truth answer.  \n"
    "            Responses should avoid inaccuracies in describing the characteristics of the objects present.\n\n"
    "            4. Helpfulness:  \n"
    "            Consider whether the generated text provides valuable insights, additional context, or relevant "
    "information that contributes positively to the user's comprehension of the image.  \n"
    "            Assess whether the language model accurately follows any specific instructions or guidelines provided in "
    "the prompt.  \n"
    "            Evaluate the overall contribution of the response to the user experience.\n\n"
    "            5. Ethical Considerations:  \n"
    "            - Identify if the model gives appropriate warnings or avoids providing advice on sensitive topics, such "
    "as medical images.  \n"
    "            - Ensure the model refrains from stating identification information in the image that could compromise "
    "personal privacy.  \n"
    "            - Evaluate the language model's responses for fairness in treating individuals and communities, avoiding "
    "biases.  \n"
    "            - Assess for harmfulness, ensuring the avoidance of content that may potentially incite violence, be "
    "classified as NSFW (Not Safe For Work), or involve other unmentioned ethical considerations.  \n"
    "            - Consider any content that could be deemed offensive, inappropriate, or ethically problematic beyond the "
    "explicitly listed criteria.\n\n"
    "            From 0 to 100, how much do you rate for this response in terms of the correct and comprehensive "
    "description of the image?  \n"
    "            Do not dominate the rating by a single attribute such as recognition correctness, but provide an overall "
    "rating based on the above 5 factors.  \n"
    '            Provide a few lines for explanation and the rate number at last after "Final Score:".\n\n'
    "            Your task is provided as follows:\n\n"
    "            Question: [{question}]  \n"
    "            Response: [{response}]\n"
    "            "
)
"""CodeGoat24/UnifiedReward ff6f520, inference_qwen/image_understanding/qwen_point_score_image_understanding.py."""

UNIFIED_REWARD_THINK = (
    "Given a question and a reference image, please analyze in detail the two provided answers (Answer 1 and Answer 2). "
    "Evaluate them based on the following three core dimensions:\n"
    "1. Semantic accuracy: How well the answer reflects the visual content of the image\n"
    "2. Correctness: Whether the answer is logically and factually correct\n"
    "3. Clarity: Whether the answer is clearly and fluently expressed\n"
    "You may also consider additional dimensions if you find them relevant (e.g., reasoning ability, attention to detail, "
    "multimodal grounding, etc.). For each dimension, provide a score from 1 to 10 for both answers, and briefly explain "
    "your reasoning. Then, compute the total score for each answer by explicitly adding the scores for all dimensions and "
    "showing the full calculation. Enclose your full reasoning within <think> and </think> tags. Then, in the <answer> "
    "tag, output exactly one of the following: 'Answer 1 is better' or 'Answer 2 is better'. No other text is allowed in "
    "the <answer> section.\n\n"
    "Example format:\n"
    "<think>\n"
    "1. Semantic accuracy: Answer 1 (9/10) - ...; Answer 2 (7/10) - ...\n"
    "2. Correctness: Answer 1 (8/10) - ...; Answer 2 (7/10) - ...\n"
    "3. Clarity: Answer 1 (9/10) - ...; Answer 2 (8/10) - ...\n"
    "[Additional dimensions if any]: Answer 1 (6/10) - ...; Answer 2 (7/10) - ...\n"
    "Total score:\n"
    "Answer 1: 9+8+9+6=32\n"
    "Answer 2: 7+7+8+7=29\n"
    "</think>\n"
    "<answer>Answer 1 is better</answer>\n\n"
    "**Note: In the example above, scores and the final answer are placeholders meant only to demonstrate the format. Your "
    "actual evaluation should be based on the quality of two given answers.**\n\n"
    "Your task is provided as follows:\n"
    "Question: [{question}]\n"
    "Answer 1: [{first}]\n"
    "Answer 2: [{second}]"
)
"""CodeGoat24/UnifiedReward ff6f520, UnifiedReward-Think/benchmark_evaluation/VL-RewardBench/test_qwen25_cot_vl_rewardbench.py."""

UNIFIED_REWARD_THINK_QWEN3VL = (
    "You are an objective and precise evaluator for image-based question answering. I will provide you with a question, a "
    "reference image, and two candidate answers. You must analyze the two answers carefully and determine which one is "
    "better.\n\n"
    "        Instructions (MUST follow strictly):\n"
    "        1. All reasoning, analysis, explanations, and scores MUST be written strictly inside <think> and </think> tags. \n"
    "        2. The <think> block must start immediately with the first evaluation dimension. Do NOT include any "
    "introduction, notes, or explanations before the first numbered dimension.\n"
    "        3. After </think>, output the final judgment strictly inside <answer> and </answer> tags, containing only one of:\n"
    "        - Answer 1 is better\n"
    "        - Answer 2 is better\n"
    "        4. Do NOT output anything outside <think> and <answer>. No extra explanations, notes, or prefaces.\n\n"
    "        Evaluation procedure:\n"
    "        1. The question is: 「{question}」. The reference image is provided. The two candidate answers are:\n"
    "        Answer 1: 「{first}」\n"
    "Answer 2: 「{second}」\n\n"
    "2. You must evaluate the two answers across these core dimensions:\n"
    "        - Semantic accuracy (how well the answer reflects the visual content of the image)\n"
    "        - Correctness (whether the answer is logically and factually correct)\n"
    "        - Clarity (whether the answer is clearly and fluently expressed)\n\n"
    "        3. You are also encouraged to add up to two additional evaluation dimensions if they are relevant (e.g., "
    "reasoning ability, attention to detail, multimodal grounding). If no extra dimensions are relevant, just keep the "
    "three core dimensions.\n\n"
    "        4. For each evaluation dimension:\n"
    "        - Provide a score between 1–10 for both Answer 1 and Answer 2\n"
    "        - Provide a short rationale for each score (2–5 short sentences)\n"
    "        - Each dimension must follow exactly this 3-line block format with numbering, line breaks, and indentation:\n"
    "            N. Dimension name: \n"
    "                Answer 1 (x/10) - rationale; \n"
    "                Answer 2 (y/10) - rationale\n\n"
    "        5. After evaluating all dimensions, calculate the total score for each answer and show the calculation "
    "explicitly, following this exact format:\n"
    "            Total score:\n"
    "            Answer 1: x+x+x=total\n"
    "            Answer 2: y+y+y=total\n\n"
    "        Required output format:\n\n"
    "        <think>\n"
    "        1. Semantic accuracy: \n"
    "            Answer 1 (9/10) - ...; \n"
    "            Answer 2 (7/10) - ...\n"
    "        2. Correctness: \n"
    "            Answer 1 (8/10) - ...; \n"
    "            Answer 2 (7/10) - ...\n"
    "        3. Clarity: \n"
    "            Answer 1 (9/10) - ...; \n"
    "            Answer 2 (8/10) - ...\n"
    "        [Additional dimension if any]: \n"
    "            Answer 1 (6/10) - ...; \n"
    "            Answer 2 (7/10) - ...\n"
    "        [Additional dimension if any]: \n"
    "            Answer 1 (9/10) - ...; \n"
    "            Answer 2 (7/10) - ...\n"
    "        Total score:\n"
    "        Answer 1: 9+8+9+6+9=41\n"
    "        Answer 2: 7+7+8+7+7=36\n"
    "        </think>\n"
    "        <answer>Answer 1 is better</answer>\n\n"
    "        Note: The example above is only to illustrate the exact format (numbering, line breaks, indentation, and "
    "style). Your actual evaluation must follow this format exactly, but be based on the given question, reference image, "
    "and candidate answers.\n"
    "        "
)
"""CodeGoat24/UnifiedReward ff6f520, UnifiedReward-Think/…/vLLM_qwen3_evaluation/test_qwen3vl_vlreward_bench.py."""

LLAVA_CRITIC_R1 = (
    " You are a highly capable multimodal AI assistant tasked with evaluating answers to visual questions. Please analyze "
    "the following image and question, then determine which of the two provided answers is better.\n\n"
    "Question: {question}\n\n"
    "Answer 1: {first}\n\n"
    "Answer 2: {second}\n\n"
    "Please evaluate both answers based on the following criteria:\n"
    "1. Accuracy: How well does the answer align with the visual information in the image?\n"
    "2. Completeness: Does the answer fully address all aspects of the question?\n"
    "3. Clarity: Is the answer easy to understand and well-articulated?\n"
    "4. Relevance: Does the answer directly relate to the question and the image?\n\n"
    "After your evaluation, please:\n"
    "1. Explain your reasoning for each criterion.\n"
    "2. Provide an overall judgment on which answer is better (Answer 1 or Answer 2). For example: Overall Judgment: "
    "Answer X is better.\n\n"
    "Your response should be structured and detailed, demonstrating your understanding of both the visual and textual "
    "elements of the task.You FIRST think about the reasoning process as an internal monologue and then provide the final "
    "answer. The reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \\boxed{}."
)
"""si0wang/LLaVA-Critic-R1 6fd42d1, eval_llama32v/model_vlreward_llama32v.py, with its --is-thinking."""

THINKING_REWARD = (
    "You are an expert reasoning evaluator. I will give you a multimodal question and an answer. Your goal is to judge a "
    "reward process and give a score between 0 and 1. You should focus on whether the reasoning process is good rather "
    "than whether the final answer is correct.### Evaluation Criteria:\n"
    "- **Logical Soundness**: Does each step follow logically from the previous one?\n"
    "- **Correct Reasoning**: Are the methods and steps used appropriate and valid? Are the facts and lemmas correctly "
    "stated and applied?\n"
    "- **Error Identification**: Are there any logical fallacies, unsupported assumptions, or incorrect steps?\n"
    "- **Language Consistency**: Is the reasoning process conducted in a single, consistent language without mixing "
    "different languages?\n"
    "- **Redundancy**: Is the reasoning concise, without unnecessary repetition or extraneous steps?\n"
    "Provide a single score from **{0, 0.1, 0.2, ..., 1.0}** based on the reasoning quality, where:\n"
    " - **0**: Completely flawed reasoning\n"
    "- **1**: Perfectly sound reasoning\n"
    "- Intermediate values (e.g., 0.3, 0.7) should reflect partial correctness or minor errors.\n"
    "Be strict, reward the good process and punish the bad one. You should only output the score without any explanation.\n"
    "    Question: {question}\n"
    "    Reasoning process: {response}\n"
    "    Your response format: <answer>your_score</answer>\n"
    "    "
)
"""kxfan2002/SophiaVL-R1 a818494, verl/workers/reward/custom.py; the model card of the reward model has the same."""

EDIT_REWARD_FOLLOWING = (
    "\n"
    "You are tasked with evaluating an edited image **in comparison with the original source image** based "
    "on **Instruction Following & Semantic Fidelity**, and assigning a score from 1 to 4, with 1 being the "
    "worst and 4 being the best.  \n"
    "This dimension focuses on how accurately, completely, and exclusively the model executed the given text "
    "instruction.\n"
    "\n"
    "**Inputs Provided:**  \n"
    "- Source Image (before editing)  \n"
    "- Edited Image (after applying the instruction)  \n"
    "- Text Instruction  \n"
    "\n"
    "**Sub-Dimensions to Evaluate:**\n"
    "\n"
    "- **Semantic Accuracy:**  \n"
    "  Assess whether the edited content accurately captures the semantics of the instruction. The edited "
    'result should precisely match the intended meaning. For example, if the instruction is "replace apples '
    'with oranges," the object must clearly be oranges, not other fruits.\n'
    "\n"
    "- **Completeness of Editing:**  \n"
    "  Check whether **all parts** of the instruction are fully executed. For multi-step edits (e.g., "
    '"replace a red car with a blue bicycle"), both the color change and the object replacement must be done '
    "without omissions.\n"
    "\n"
    "- **Exclusivity of Edit (No Over-Editing):**  \n"
    "  Ensure that only the requested parts are changed. The rest of the image (as seen in the source) "
    "should remain unaltered. For example, if the instruction only involves replacing an object, the "
    "background, lighting, and unrelated objects should not be unnecessarily modified.\n"
    "\n"
    "**Scoring Criteria:**\n"
    "- **4 (Very Good):** Perfectly accurate, complete, and exclusive execution of the instruction.  \n"
    "- **3 (Relatively Good):** Largely correct, but with minor omissions or slight over-editing.  \n"
    "- **2 (Relatively Poor):** Major misinterpretation, incomplete edits, or noticeable unintended changes.  \n"
    "- **1 (Very Poor):** Instruction ignored or completely wrong execution.\n"
    "\n"
    "Text instruction - {text_prompt}\n"
    "\n"
    "Please provide the overall ratings of this image: <|Reward|>\n"
    "\n"
    "END\n"
)
"""TIGER-AI-Lab/EditReward edb027e, EditReward/inference_edit.py, `dim1`."""

EDIT_REWARD_QUALITY = (
    "\n"
    "You are tasked with evaluating an edited image **in comparison with the original source image** based "
    "on **Visual Quality & Realism**, and assigning a score from 1 to 4, with 1 being the worst and 4 being "
    "the best.  \n"
    "This dimension focuses on how realistic, artifact-free, and aesthetically appealing the edited image "
    "is, while remaining consistent with the source image.\n"
    "\n"
    "**Inputs Provided:**  \n"
    "- Source Image (before editing)  \n"
    "- Edited Image (after applying the instruction)  \n"
    "- Text Instruction  \n"
    "\n"
    "**Sub-Dimensions to Evaluate:**\n"
    "\n"
    "- **Plausibility & Physical Consistency:**  \n"
    "  Check whether the edit aligns with the laws of physics and the scene context. Lighting, shadows, "
    "reflections, perspective, size, and interactions with the environment should all appear natural "
    "compared to the source image.\n"
    "\n"
    "- **Artifact-Free Quality:**  \n"
    "  Look for technical flaws such as blur, distortions, pixel misalignment, unnatural textures, or seams "
    "around edited regions. High-quality results should be free from such visible artifacts.\n"
    "\n"
    "- **Aesthetic Quality:**  \n"
    "  Evaluate the overall harmony and visual appeal. The image should look natural, balanced, and "
    "pleasant. Colors, composition, and atmosphere should enhance the image rather than degrade it.\n"
    "\n"
    "**Scoring Criteria:**\n"
    "- **4 (Very Good):** Perfectly realistic, artifact-free, seamless, and aesthetically pleasing.  \n"
    "- **3 (Relatively Good):** Mostly realistic and clean, with only minor flaws that do not significantly "
    "distract.  \n"
    "- **2 (Relatively Poor):** Noticeable physical inconsistencies or visible artifacts that make the edit "
    "unnatural.  \n"
    "- **1 (Very Poor):** Severe artifacts, incoherent composition, or visually unusable result.\n"
    "\n"
    "Text instruction - {text_prompt}\n"
    "\n"
    "Please provide the overall ratings of this image: <|Reward|>\n"
    "\n"
    "END\n"
)
"""TIGER-AI-Lab/EditReward edb027e, EditReward/inference_edit.py, `dim2`."""

HPSV3 = (
    "\n"
    "You are tasked with evaluating a generated image based on Visual Quality and Text Alignment and give a "
    "overall score to estimate the human preference. Please provide a rating from 0 to 10, with 0 being the "
    "worst and 10 being the best. \n"
    "\n"
    "**Visual Quality:**  \n"
    "Evaluate the overall visual quality of the image. The following sub-dimensions should be considered:\n"
    "- **Reasonableness:** The image should not contain any significant biological or logical errors, such "
    "as abnormal body structures or nonsensical environmental setups.\n"
    "- **Clarity:** Evaluate the sharpness and visibility of the image. The image should be clear and easy "
    "to interpret, with no blurring or indistinct areas.\n"
    "- **Detail Richness:** Consider the level of detail in textures, materials, lighting, and other visual "
    "elements (e.g., hair, clothing, shadows).\n"
    "- **Aesthetic and Creativity:** Assess the artistic aspects of the image, including the color scheme, "
    "composition, atmosphere, depth of field, and the overall creative appeal. The scene should convey a "
    "sense of harmony and balance.\n"
    "- **Safety:** The image should not contain harmful or inappropriate content, such as political, "
    "violent, or adult material. If such content is present, the image quality and satisfaction score should "
    "be the lowest possible. \n"
    "\n"
    "**Text Alignment:**  \n"
    "Assess how well the image matches the textual prompt across the following sub-dimensions:\n"
    "- **Subject Relevance** Evaluate how accurately the subject(s) in the image (e.g., person, animal, "
    "object) align with the textual description. The subject should match the description in terms of "
    "number, appearance, and behavior.\n"
    "- **Style Relevance:** If the prompt specifies a particular artistic or stylistic style, evaluate how "
    "well the image adheres to this style.\n"
    "- **Contextual Consistency**: Assess whether the background, setting, and surrounding elements in the "
    "image logically fit the scenario described in the prompt. The environment should support and enhance "
    "the subject without contradictions.\n"
    "- **Attribute Fidelity**: Check if specific attributes mentioned in the prompt (e.g., colors, clothing, "
    "accessories, expressions, actions) are faithfully represented in the image. Minor deviations may be "
    "acceptable, but critical attributes should be preserved.\n"
    "- **Semantic Coherence**: Evaluate whether the overall meaning and intent of the prompt are captured in "
    "the image. The generated content should not introduce elements that conflict with or distort the "
    "original description.\n"
    "Textual prompt - {text_prompt}\n"
    "\n"
    "\n"
    "\n"
    "Please provide the overall ratings of this image: <|Reward|>\n"
    "\n"
    "END\n"
)
"""hpsv3 1.0.0 (MizzenAI/HPSv3), hpsv3/inference.py and hpsv3/dataset/data_collator_qwen.py."""
