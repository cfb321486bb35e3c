"""All sources of preference records by the `type` in a recipe. A new one is a file beside this one, and a row here."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from data.sources.helpsteer3 import HelpSteer3Config
from data.sources.llava_critic import LlavaCriticConfig
from data.sources.mm_rlhf import MmRlhfConfig
from data.sources.mmif import MmifConfig
from data.sources.mmpr import MmprConfig
from data.sources.ms_swift import MsSwiftConfig
from data.sources.olmo_preference import OlmoPreferenceConfig
from data.sources.omnialign_v_dpo import OmniAlignVDpoConfig
from data.sources.povid import PovidConfig
from data.sources.project import ProjectConfig
from data.sources.questions import QuestionsConfig
from data.sources.r1_reward import R1RewardConfig
from data.sources.rlaif_v import RlaifVConfig
from data.sources.rlhf_v import RlhfVConfig
from data.sources.shapes import ShapesConfig
from data.sources.shared.source import SourceConfig
from data.sources.sharegpt import ShareGptConfig
from data.sources.shp import ShpConfig
from data.sources.skywork_preference import SkyworkPreferenceConfig
from data.sources.trl import TrlConfig
from data.sources.tulu_preference import TuluPreferenceConfig
from data.sources.ultrafeedback import UltraFeedbackConfig
from data.sources.ultrafeedback_binarized import UltraFeedbackBinarizedConfig
from data.sources.vlfeedback import VlFeedbackConfig
from data.sources.wildvision_battle import WildVisionBattleConfig

SOURCES: tuple[type[SourceConfig], ...] = (
    HelpSteer3Config,
    LlavaCriticConfig,
    MmRlhfConfig,
    MmifConfig,
    MmprConfig,
    MsSwiftConfig,
    OlmoPreferenceConfig,
    OmniAlignVDpoConfig,
    PovidConfig,
    ProjectConfig,
    QuestionsConfig,
    R1RewardConfig,
    RlaifVConfig,
    RlhfVConfig,
    ShapesConfig,
    ShareGptConfig,
    ShpConfig,
    SkyworkPreferenceConfig,
    TrlConfig,
    TuluPreferenceConfig,
    UltraFeedbackConfig,
    UltraFeedbackBinarizedConfig,
    VlFeedbackConfig,
    WildVisionBattleConfig,
)

if TYPE_CHECKING:
    AnySource = SourceConfig
else:
    AnySource = Annotated[Union[SOURCES], Field(discriminator="type")]  # noqa: UP007
