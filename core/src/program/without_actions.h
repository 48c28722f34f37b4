/// Programs that are judged and never run: a search for a plan emits them by the dozen, and actions are most of what they would hold.
#pragma once

namespace oom::program {

/// While one exists, programs that this thread builds keep no actions.
class WithoutActions {
 public:
  WithoutActions();
  ~WithoutActions();
  WithoutActions(const WithoutActions&) = delete;
  WithoutActions& operator=(const WithoutActions&) = delete;
  static bool active();

 private:
  bool before_;
};

}  // namespace oom::program
