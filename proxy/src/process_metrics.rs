//! Metrics common to all programs: the build, and the CPU time of the process.

use prometheus::{Counter, IntGauge, Opts, Registry};
use rustix::time::{ClockId, clock_gettime};

use crate::process_log::COMMIT;

/// Handle to the process's metrics in a registry.
#[derive(Debug, Clone)]
pub struct ProcessMetrics {
    cpu: Counter,
}

impl ProcessMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Returns an error if the registry already has metrics with these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let build = Opts::new(
            "weir_build_info",
            "Always 1; the label is the version of the build.",
        );
        let build = IntGauge::with_opts(build.const_label("version", COMMIT))?;
        build.set(1);
        registry.register(Box::new(build))?;
        let cpu = Counter::new(
            "weir_process_cpu_seconds_total",
            "CPU time of the process, user and system.",
        )?;
        registry.register(Box::new(cpu.clone()))?;
        Ok(Self { cpu })
    }

    /// Updates the counter of CPU time to the current CPU time of the process.
    pub fn refresh(&self) {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact to the nanosecond for 104 days of CPU time"
        )]
        let used = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        // A counter panics at a negative step, which concurrent calls could cause.
        self.cpu.inc_by((used - self.cpu.get()).max(0.0));
    }
}
