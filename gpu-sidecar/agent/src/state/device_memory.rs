//! Device memory as NVML reports it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use agent_core::ProcessMemory;

/// Table of each process's device memory by process ID, read from NVML each second.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    table: Mutex<Arc<BTreeMap<u32, ProcessMemory>>>,
}

impl DeviceMemory {
    /// Returns the latest table. A process on several slots is listed with the slot on which it has most memory.
    #[must_use]
    pub fn table(&self) -> Arc<BTreeMap<u32, ProcessMemory>> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }

    /// Replaces the table of all processes.
    pub fn set(&self, table: BTreeMap<u32, ProcessMemory>) {
        let mut own = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Arc::new(table);
    }
}
