"""All sources of preference records by the `type` in a recipe. A new one is a file beside this one, and a row here."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from mmrm.data.sources.helpsteer3 import HelpSteer3Config
from mmrm.data.sources.llava_critic import LlavaCriticConfig
from mmrm.data.sources.mm_rlhf import MmRlhfConfig
from mmrm.data.sources.mmif import MmifConfig
from mmrm.data.sources.mmpr import MmprConfig
from mmrm.data.sources.ms_swift import MsSwiftConfig
from mmrm.data.sources.olmo_preference import OlmoPreferenceConfig
from mmrm.data.sources.omnialign_v_dpo import OmniAlignVDpoConfig
from mmrm.data.sources.povid import PovidConfig
from mmrm.data.sources.project import ProjectConfig
from mmrm.data.sources.questions import QuestionsConfig
from mmrm.data.sources.r1_reward import R1RewardConfig
from mmrm.data.sources.rlaif_v import RlaifVConfig
from mmrm.data.sources.rlhf_v import RlhfVConfig
from mmrm.data.sources.shapes import ShapesConfig
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.sources.sharegpt import ShareGptConfig
from mmrm.data.sources.shp import ShpConfig
from mmrm.data.sources.skywork_preference import SkyworkPreferenceConfig
from mmrm.data.sources.trl import TrlConfig
from mmrm.data.sources.tulu_preference import TuluPreferenceConfig
from mmrm.data.sources.ultrafeedback import UltraFeedbackConfig
from mmrm.data.sources.ultrafeedback_binarized import UltraFeedbackBinarizedConfig
from mmrm.data.sources.vlfeedback import VlFeedbackConfig
from mmrm.data.sources.wildvision_battle import WildVisionBattleConfig

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
