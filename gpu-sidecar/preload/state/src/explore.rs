//! Exhaustive search of the states of a model, for tests.

use std::collections::HashSet;
use std::hash::Hash;

/// Visits every state that can be reached from `first` by steps of `next`. Returns their number.
///
/// # Errors
///
/// The first error of `next`.
pub(crate) fn explore<S: Clone + Eq + Hash>(
    first: S,
    next: impl Fn(&S) -> Result<Vec<S>, &'static str>,
) -> Result<usize, &'static str> {
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        for after in next(&state)? {
            if seen.insert(after.clone()) {
                open.push(after);
            }
        }
    }
    Ok(seen.len())
}
