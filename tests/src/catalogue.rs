//! Pages of metrics held against the catalogue.

use dashboards::catalogue::{Program, catalogue};
use dashboards::page::{Expectation, differences};
use dashboards::promtool;

/// Returns what is wrong with a page, a sentence each: how it differs from the catalogue, and what promtool says.
///
/// # Panics
/// If the catalogue cannot be used, or promtool not be run.
#[must_use]
pub fn problems(page: &str, program: Program, only: &[&str]) -> Vec<String> {
    let catalogue = catalogue().expect("the catalogue is well formed");
    let expected = Expectation { only, pods: false };
    let mut all = differences(page, program, &catalogue, expected);
    let told = promtool::check_page(page).expect("promtool runs where it is installed");
    all.extend(told.lines().map(str::to_owned));
    all
}
