//! What is known of a function: its times and its model.

use super::InstanceId;
use crate::Span;
use crate::pool::heaviness::{self, Heaviness};
use crate::pool::means::{Drains, LoadRate, in_proportion};
use crate::pool::slots;

/// What is known of a function.
#[derive(Debug, Clone, Default)]
pub(super) struct Function {
    pub(super) instances: Vec<InstanceId>,
    /// Mean times as measured, and the number of executions.
    pub(super) execution: Span,
    pub(super) executions: u32,
    pub(super) load: Span,
    /// Size of the model when its load was measured, in bytes.
    pub(super) loaded_bytes: u64,
    pub(super) heaviness: Heaviness,
    /// Drains of its instances' leases.
    pub(super) drains: Drains,
    /// Whether a load leaves its requests little of their objective ([`Function::set_tight`]).
    pub(super) is_tight: bool,
    /// Size of its largest instance, in bytes.
    pub(super) bytes: u64,
}

/// Returns whether a size is less than that of the whole model by more than an eighth.
pub(super) const fn is_part(bytes: u64, whole: u64) -> bool {
    bytes < whole - whole / 8
}

impl Function {
    /// Returns the time of a load as measured, or zero. If the model was smaller then, as one that had to leave before it was whole, it is in proportion,
    /// but one of less than half of it says nothing: what does not depend on the size would count for too much.
    pub(super) fn measured_load(&self) -> Span {
        if !is_part(self.loaded_bytes, self.bytes) {
            return self.load;
        }
        if self.loaded_bytes == 0 || self.loaded_bytes < self.bytes / 2 {
            return Span::ZERO;
        }
        in_proportion(self.load, self.loaded_bytes, self.bytes)
    }

    /// Returns the expected time of a load: as measured, else at the rate of other functions' loads.
    pub(super) fn load(&self, rate: LoadRate) -> Span {
        let measured = self.measured_load();
        if measured > Span::ZERO {
            return measured;
        }
        rate.expected(self.bytes)
    }

    /// Classifies the model, whose load was measured, by the share of the objective that a request with a load takes: above three quarters it is tight,
    /// and it stays so above two thirds. A function whose requests alone take longer than the objective is not.
    pub(super) fn set_tight(&mut self, objective: Span, load: Span) {
        let alone = u128::from(self.execution.0);
        let loaded = alone + u128::from(load.0);
        let objective = u128::from(objective.0);
        let is_above = if self.is_tight {
            loaded * 3 > objective * 2
        } else {
            loaded * 4 > objective * 3
        };
        self.is_tight = objective > 0 && is_above && alone < objective;
    }

    /// Returns whether its loads are long beside its executions (M2.14).
    pub(super) fn is_heavy(&self) -> bool {
        self.heaviness.class() == heaviness::Class::Heavy
    }

    /// Returns the model as the pool knows it.
    pub(super) fn model(&self, rate: LoadRate) -> slots::Model {
        slots::Model {
            bytes: self.bytes,
            heavy: self.is_heavy(),
            tight: self.is_tight,
            writes: false,
            execution: self.execution,
            swapped: Span(self.execution.0.saturating_add(self.load(rate).0)),
        }
    }
}
