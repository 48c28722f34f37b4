/// Interface of the test plugins: something to call across the seam.
#pragma once

#include "oom/plugin.h"

class OOM_API Probe : public oom::Plugin {
 public:
  virtual int answer(int question) = 0;
};
