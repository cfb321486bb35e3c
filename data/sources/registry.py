"""The sources of preference records, by the `type` in a recipe.

To add a source, write a file next to this one and add its row to `SOURCES`. data/README.md lists
the steps.
"""

from typing import Annotated

from mmrm.data.config.registry import OneOf
from mmrm.data.sources.edit_reward import EditRewardConfig
from mmrm.data.sources.helpsteer2 import HelpSteer2Config
from mmrm.data.sources.helpsteer3 import HelpSteer3Config
from mmrm.data.sources.hpdv3 import Hpdv3Config
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
from mmrm.data.sources.shards import ShardsConfig
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

SOURCES: dict[str, type[SourceConfig] | str] = {
    "edit_reward": EditRewardConfig,
    "helpsteer2": HelpSteer2Config,
    "helpsteer3": HelpSteer3Config,
    "hpdv3": Hpdv3Config,
    "llava_critic": LlavaCriticConfig,
    "mm_rlhf": MmRlhfConfig,
    "mmif": MmifConfig,
    "mmpr": MmprConfig,
    "ms_swift": MsSwiftConfig,
    "olmo_preference": OlmoPreferenceConfig,
    "omnialign_v_dpo": OmniAlignVDpoConfig,
    "povid": PovidConfig,
    "project": ProjectConfig,
    "questions": QuestionsConfig,
    "r1_reward": R1RewardConfig,
    "rlaif_v": RlaifVConfig,
    "rlhf_v": RlhfVConfig,
    "shapes": "mmrm.data.synthetic.source:ShapesConfig",
    "shapes_drawn": "mmrm.data.synthetic.drawn_source:DrawnShapesConfig",
    "shapes_edited": "mmrm.data.synthetic.drawn_source:EditedShapesConfig",
    "shapes_motion": "mmrm.data.synthetic.motion_source:MotionConfig",
    "shapes_rated": "mmrm.data.synthetic.rated_source:RatedShapesConfig",
    "shards": ShardsConfig,
    "sharegpt": ShareGptConfig,
    "shp": ShpConfig,
    "skywork_preference": SkyworkPreferenceConfig,
    "trl": TrlConfig,
    "tulu_preference": TuluPreferenceConfig,
    "ultrafeedback": UltraFeedbackConfig,
    "ultrafeedback_binarized": UltraFeedbackBinarizedConfig,
    "vlfeedback": VlFeedbackConfig,
    "wildvision_battle": WildVisionBattleConfig,
}
"""The class of each type. A row that is an import path may be absent from the clone."""

AnySource = Annotated[SourceConfig, OneOf(SOURCES)]
"""The annotation of a recipe key that holds a source of any installed type."""
