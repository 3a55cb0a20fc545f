//! Metrics that each program around these sockets has: which build it is, and its CPU time.

use prometheus::{Counter, IntGauge, Opts, Registry};
use rustix::time::{ClockId, clock_gettime};

use crate::process_log::COMMIT;

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct ProcessMetrics {
    cpu: Counter,
}

impl ProcessMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry has metrics of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let build = Opts::new("weir_build_info", "1; the label says which build this is.");
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

    /// Raises the CPU time to what the process has used.
    pub fn refresh(&self) {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact to the nanosecond for 104 days of CPU time"
        )]
        let used = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        // A counter panics at a negative step, which two threads at once could make.
        self.cpu.inc_by((used - self.cpu.get()).max(0.0));
    }
}
