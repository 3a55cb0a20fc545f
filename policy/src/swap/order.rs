//! The order in which a model's blocks are swapped in: as kernels first touch them, also in models with branches
//! (mechanisms §2.7).

use super::ModelBlock;

/// Number of distinct paths that are kept.
const PATHS: usize = 4;

/// First touches of a run, in order, and the number of recorded runs with exactly these.
#[derive(Clone, Debug, Default)]
struct Path {
    touches: Vec<ModelBlock>,
    runs: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Paths(Vec<Path>);

impl Paths {
    /// Adds a recorded run. Beyond four paths, the one with the fewest runs is forgotten, among equal ones the oldest.
    pub(super) fn add(&mut self, touches: &[ModelBlock]) {
        if let Some(path) = self.0.iter_mut().find(|path| path.touches == touches) {
            path.runs += 1;
            return;
        }
        if self.0.len() == PATHS {
            let rarest = (0..PATHS).min_by_key(|&at| self.0[at].runs);
            if let Some(rarest) = rarest {
                self.0.remove(rarest);
            }
        }
        self.0.push(Path {
            touches: touches.to_vec(),
            runs: 1,
        });
    }

    /// Iterates over all touches: those of the most frequent path first, among equally frequent paths those of the
    /// oldest. A block is repeated for each path that contains it.
    pub(super) fn touches(&mut self) -> impl Iterator<Item = ModelBlock> {
        // The sort is stable: the oldest of equals stays first.
        self.0.sort_by_key(|path| std::cmp::Reverse(path.runs));
        self.0.iter().flat_map(|path| path.touches.iter().copied())
    }

    /// Forgets a freed block; its id may be reused for another.
    pub(super) fn forget(&mut self, block: ModelBlock) {
        for path in &mut self.0 {
            path.touches.retain(|&touched| touched != block);
        }
    }
}
