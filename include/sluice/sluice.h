/* All of sluice. */
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H

#include "sluice/app/inference.h"
#include "sluice/app/launch.h"
#include "sluice/app/option.h"
#include "sluice/app/plan.h"
#include "sluice/app/planner.h"
#include "sluice/app/report.h"
#include "sluice/app/text.h"
#include "sluice/app/train.h"
#include "sluice/checkpoint.h"
#include "sluice/data_parallel.h"
#include "sluice/ddp.h"
#include "sluice/device.h"
#include "sluice/dtype.h"
#include "sluice/group.h"
#include "sluice/layers.h"
#include "sluice/loss.h"
#include "sluice/model.h"
#include "sluice/module.h"
#include "sluice/module_check.h"
#include "sluice/optim.h"
#include "sluice/pipe.h"
#include "sluice/pipe_optimizer.h"
#include "sluice/profile.h"
#include "sluice/safetensors.h"
#include "sluice/schedule.h"
#include "sluice/status.h"
#include "sluice/tensor.h"
#include "sluice/training.h"

#endif
