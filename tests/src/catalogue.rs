//! Comparison of metrics pages with the catalogue.

use dashboards::catalogue::{Program, catalogue};
use dashboards::page::{Expectation, differences};
use dashboards::promtool;

/// Returns the problems of a page, a sentence each: differences from the catalogue, and promtool's findings.
///
/// # Panics
/// If the catalogue is invalid, or promtool cannot be run.
#[must_use]
pub fn problems(page: &str, program: Program, only: &[&str]) -> Vec<String> {
    let catalogue = catalogue().expect("the catalogue is well formed");
    let expected = Expectation { only, pods: false };
    let mut all = differences(page, program, &catalogue, expected);
    let findings = promtool::check_page(page).expect("promtool runs where it is installed");
    all.extend(findings.lines().map(str::to_owned));
    all
}
