//! The command `trunkline`, the compiler wrappers, and tests of Trunkline itself.

use crate::SettingKind::{Path, Text};
use crate::SettingUse::{EnvironmentOnly, LoadsCode};

const ANY: crate::SettingKind = Text { expected: "a text" };

setting_rows! {
    PLUGIN: "TRUNKLINE_PLUGIN", Command, Path { expected: "the path of a file" }, "",
        "the plugin that bench loads; unset: the one beside the command, or in ../lib",
        usage(LoadsCode);
    OSHCC: "OSHCC", Command, Text { expected: "a command" }, "cc",
        "the C compiler that oshcc calls",
        usage(EnvironmentOnly);
    OSHCXX: "OSHCXX", Command, Text { expected: "a command" }, "c++",
        "the C++ compiler that oshc++ calls",
        usage(EnvironmentOnly);
    SEED: "TRUNKLINE_SEED", Tests, ANY, "", "the seed of one run of the simulator", usage(EnvironmentOnly);
    SEEDS: "TRUNKLINE_SEEDS", Tests, ANY, "", "seeds of the simulator's tests", usage(EnvironmentOnly);
    FULL: "TRUNKLINE_FULL", Tests, ANY, "", "1: tests run at their full length", usage(EnvironmentOnly);
    CORPUS: "TRUNKLINE_CORPUS", Tests, ANY, "", "where fuzz targets keep their inputs", usage(EnvironmentOnly);
    REQUIRE: "TRUNKLINE_REQUIRE", Tests, ANY, "", "the parts that tests may not skip", usage(EnvironmentOnly);
    SKIP_LOG: "TRUNKLINE_SKIP_LOG", Tests, ANY, "", "the file that lists skipped tests", usage(EnvironmentOnly);
    PANIC: "TRUNKLINE_PANIC", Tests, ANY, "", "the call that panics, in a build for tests", usage(EnvironmentOnly);
    CHECKER: "TRUNKLINE_CHECKER", Tests, ANY, "", "the checker under which programs run", usage(EnvironmentOnly);
    AS_HOST: "TRUNKLINE_AS_HOST", Tests, ANY, "", "the role of a process of a test", usage(EnvironmentOnly);
    PLANT: "TRUNKLINE_PLANT", Tests, ANY, "", "the fault of a control test", usage(EnvironmentOnly);
    STOP_AT_FAILURE: "TRUNKLINE_STOP_AT_FAILURE", Tests, ANY, "", "1: a run ends at the first failed test", usage(EnvironmentOnly);
}
