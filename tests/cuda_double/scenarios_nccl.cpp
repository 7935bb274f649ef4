#include "scenarios.h"
const std::vector<Scenario> nccl_scenarios = {};
