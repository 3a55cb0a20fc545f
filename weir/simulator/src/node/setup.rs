//! Set-up of a run: the functions of its workload, and the nodes which hold them.

use policy::pool::FunctionId;
use policy::pool::billing::Bill;
use policy::pool::nodes::{LoadPerSecond, NodeId, Nodes, PlaceError};
use policy::{Span, Time};

use super::hardware::{Hardware, bytes, millis};
use super::run::{RunError, scaled};
use super::settings::{Hosting, Settings};
use super::state::Function;
use super::swap_time::Swaps;
use crate::random::{Purpose, Streams};
use crate::statistics::Percentile;
use crate::traces::Workload;

/// Returns the functions of a workload, without nodes.
pub(super) fn functions<A>(
    hardware: &Hardware,
    settings: &Settings,
    workload: &Workload<A>,
    streams: &Streams,
) -> Result<Vec<Function>, RunError> {
    let is_native = settings.hosting != Hosting::Swapped;
    let mut functions = Vec::with_capacity(workload.functions.len());
    for (at, info) in (0..).zip(&workload.functions) {
        let name = info.model.as_deref().unwrap_or_default();
        let model = hardware.model(name).ok_or_else(|| RunError::NoModel {
            function: info.name.clone(),
            model: name.to_owned(),
            allowed: hardware
                .models
                .iter()
                .map(|model| model.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })?;
        let times = &hardware.models[model];
        let execution = if is_native {
            times.native_ms
        } else {
            times.execution_ms
        };
        functions.push(Function {
            model,
            objective: info.objective.unwrap_or(Span(u64::MAX / 4)),
            percentile: info
                .percentile
                .map_or(settings.percentile, Percentile::for_policy),
            execution: millis(execution),
            places: [None; 2],
            noise: streams.stream(Purpose::Noise, at),
            bill: Bill::default(),
        });
    }
    Ok(functions)
}

/// Assigns functions to nodes, as far as host memory suffices. Returns the assignment, and the functions of each node by their
/// place on it.
pub(super) fn place<A>(
    hardware: &Hardware,
    settings: &Settings,
    workload: &Workload<A>,
    swaps: &Swaps,
    functions: &mut [Function],
) -> Result<(Nodes, Vec<Vec<u32>>), RunError> {
    let mut cluster = Nodes::default();
    for _ in 0..settings.nodes {
        let slots = u32::try_from(hardware.node.slots).unwrap_or(u32::MAX);
        cluster.add_node(slots, bytes(hardware.node.host_gb * 1e9));
    }
    let mut held = vec![Vec::new(); settings.nodes as usize];
    for (at, info) in (0..).zip(&workload.functions) {
        let own = &mut functions[at as usize];
        // A model that fits no slot takes no host memory either.
        if !hardware.fits(own.model, settings) {
            continue;
        }
        let per_second = info.per_minute.unwrap_or(1.0) / 60.0;
        let takes = swaps.alone(own.model);
        let load = LoadPerSecond(scaled(takes, per_second));
        match cluster.place(FunctionId(at), hardware.of_pool(own.model).bytes, load) {
            Ok((first, second)) => {
                for (place, node) in own.places.iter_mut().zip([Some(first), second]) {
                    if let Some(NodeId(node)) = node {
                        let locals: &mut Vec<u32> = &mut held[node as usize];
                        *place = Some((node, u32::try_from(locals.len()).unwrap_or(u32::MAX)));
                        locals.push(at);
                        own.bill.resident(Time::ZERO);
                    }
                }
            }
            Err(PlaceError::NoHostMemory) => {}
            Err(_) => return Err(RunError::TooMany),
        }
    }
    Ok((cluster, held))
}
