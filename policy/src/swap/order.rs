//! In what order a model's blocks are swapped in: as kernels first touch them, also in models that branch
//! (papers 2.7).

use super::ModelBlock;

/// Paths that are told apart.
const PATHS: usize = 4;

/// First touches of a run, in order, and how many recorded runs had exactly them.
#[derive(Clone, Debug, Default)]
struct Path {
    touches: Vec<ModelBlock>,
    runs: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Paths(Vec<Path>);

impl Paths {
    /// A run has been recorded. Beyond four paths the one with the fewest runs is forgotten, of equal ones the
    /// oldest.
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

    /// All touches, those of the most frequent path first, of equally frequent ones those of the oldest. Blocks
    /// come as often as paths have them.
    pub(super) fn touches(&mut self) -> impl Iterator<Item = ModelBlock> {
        // Stable: the oldest of equals stays first.
        self.0.sort_by_key(|path| std::cmp::Reverse(path.runs));
        self.0.iter().flat_map(|path| path.touches.iter().copied())
    }

    /// A block is gone; its id may be given to another.
    pub(super) fn forget(&mut self, block: ModelBlock) {
        for path in &mut self.0 {
            path.touches.retain(|&touched| touched != block);
        }
    }
}
