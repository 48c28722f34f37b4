#include "runtime/temporaries_cap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oom/error.h"

namespace oom::runtime {
namespace {

TEST(TemporariesCap, IsWhatTheBudgetLeaves) {
  EXPECT_EQ(temporaries_cap({.budget = 100, .headroom = 10, .arena = 50, .fixed = 5, .planned = 30}, 0), 35);
  EXPECT_EQ(temporaries_cap({.budget = 100, .headroom = 10, .arena = 50, .fixed = 5}, 0), 35);
}

TEST(TemporariesCap, TakesOfTheHeadroomWhatTheContextTookTooMuch) {
  EXPECT_EQ(temporaries_cap({.budget = 100, .headroom = 10, .arena = 50, .fixed = 12, .planned = 30}, 0), 30);
  EXPECT_EQ(temporaries_cap({.budget = 100, .headroom = 10, .arena = 50, .fixed = 20, .planned = 30}, 0), 30);
}

TEST(TemporariesCap, RefusesBeforeAStepWhatWouldEndInOne) {
  try {
    temporaries_cap({.budget = 100, .headroom = 10, .arena = 50, .fixed = 21, .planned = 30}, 3);
    FAIL();
  } catch (const BudgetError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("gpu 3"), testing::HasSubstr("budget.gpu"), testing::HasSubstr("budget.headroom")));
  }
  EXPECT_THROW(temporaries_cap({.budget = 100, .headroom = 0, .arena = 100, .fixed = 5}, 0), BudgetError);
}

}  // namespace
}  // namespace oom::runtime
