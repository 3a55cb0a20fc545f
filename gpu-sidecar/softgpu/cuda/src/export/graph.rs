//! Exported functions for stream capture and graphs.

use std::ffi::{c_char, c_void};

use crate::context::Context;
use crate::copy::Copy3d;
use crate::event::Event;
use crate::graph::build::{self, Dependencies, Edge, Pairs};
use crate::graph::capture::{self, Info};
use crate::graph::exchange::InOut;
use crate::graph::exec::{self, Exec, InstantiateParameters, UpdateResult};
use crate::graph::nodes::{Graph, NodeRef};
use crate::graph::objects::{self, UserObject};
use crate::graph::parameters::{
    HostParameters, KernelParameters, KernelParametersV1, NodeParameters, SetParameters,
};
use crate::graph::{dot, memory};
use crate::pointer::{In, Out, Text};
use crate::stream::{DefaultStream, Stream};
use crate::table::Handle;
use crate::work::HostFunction;

use super::functions;

functions! { TABLE:
    fn cuGraphCreate(out: Out<Handle<Graph>>, flags: u32) = build::create(out, flags);
    fn cuGraphDestroy(handle: Handle<Graph>) = build::destroy(handle);
    fn cuGraphClone(out: Out<Handle<Graph>>, handle: Handle<Graph>) = build::clone(out, handle);
    fn cuGraphNodeFindInClone(out: Out<Handle<NodeRef>>, node: Handle<NodeRef>, clone: Handle<Graph>) = build::find_in_clone(out, node, clone);
    fn cuGraphAddKernelNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, parameters: In<KernelParametersV1>) = build::add_kernel_v1(out, handle, Dependencies::new(list, count), parameters);
    fn cuGraphAddKernelNode_v2(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, parameters: In<KernelParameters>) = build::add_kernel(out, handle, Dependencies::new(list, count), parameters);
    fn cuGraphAddMemcpyNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, parameters: In<Copy3d>, context: Handle<Context>) = build::add_copy(out, handle, Dependencies::new(list, count), parameters, context);
    fn cuGraphAddMemsetNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, parameters: In<SetParameters>, context: Handle<Context>) = build::add_set(out, handle, Dependencies::new(list, count), parameters, context);
    fn cuGraphAddHostNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, parameters: In<HostParameters>) = build::add_host(out, handle, Dependencies::new(list, count), parameters);
    fn cuGraphAddEmptyNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize) = build::add_empty(out, handle, Dependencies::new(list, count));
    fn cuGraphAddChildGraphNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, child: Handle<Graph>) = build::add_child(out, handle, Dependencies::new(list, count), child);
    fn cuGraphAddEventRecordNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, event: Handle<Event>) = build::add_record(out, handle, Dependencies::new(list, count), event);
    fn cuGraphAddEventWaitNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, event: Handle<Event>) = build::add_wait(out, handle, Dependencies::new(list, count), event);
    fn cuGraphAddNode(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize, parameters: In<NodeParameters>) = build::add_any(out, handle, Dependencies::new(list, count), parameters);
    fn cuGraphAddNode_v2(out: Out<Handle<NodeRef>>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, edges: In<Edge>, count: usize, parameters: In<NodeParameters>) = build::add_any(out, handle, Dependencies { list, edges, count }, parameters);
    fn cuGraphDestroyNode(node: Handle<NodeRef>) = build::destroy_node(node);
    fn cuGraphAddDependencies(handle: Handle<Graph>, from: In<Handle<NodeRef>>, to: In<Handle<NodeRef>>, count: usize) = build::add_dependencies(handle, Pairs::new(from, to, count));
    fn cuGraphAddDependencies_v2(handle: Handle<Graph>, from: In<Handle<NodeRef>>, to: In<Handle<NodeRef>>, edges: In<Edge>, count: usize) = build::add_dependencies(handle, Pairs { from, to, edges, count });
    fn cuGraphRemoveDependencies(handle: Handle<Graph>, from: In<Handle<NodeRef>>, to: In<Handle<NodeRef>>, count: usize) = build::remove_dependencies(handle, Pairs::new(from, to, count));
    fn cuGraphRemoveDependencies_v2(handle: Handle<Graph>, from: In<Handle<NodeRef>>, to: In<Handle<NodeRef>>, edges: In<Edge>, count: usize) = build::remove_dependencies(handle, Pairs { from, to, edges, count });
    fn cuGraphGetNodes(handle: Handle<Graph>, out: Out<Handle<NodeRef>>, count: InOut<usize>) = build::get_nodes(handle, out, count);
    fn cuGraphGetRootNodes(handle: Handle<Graph>, out: Out<Handle<NodeRef>>, count: InOut<usize>) = build::get_roots(handle, out, count);
    fn cuGraphGetEdges(handle: Handle<Graph>, from: Out<Handle<NodeRef>>, to: Out<Handle<NodeRef>>, count: InOut<usize>) = build::get_edges(handle, from, to, None, count);
    fn cuGraphGetEdges_v2(handle: Handle<Graph>, from: Out<Handle<NodeRef>>, to: Out<Handle<NodeRef>>, edges: Out<Edge>, count: InOut<usize>) = build::get_edges(handle, from, to, Some(edges), count);
    fn cuGraphNodeGetDependencies(node: Handle<NodeRef>, out: Out<Handle<NodeRef>>, count: InOut<usize>) = build::get_dependencies(node, out, None, count);
    fn cuGraphNodeGetDependencies_v2(node: Handle<NodeRef>, out: Out<Handle<NodeRef>>, edges: Out<Edge>, count: InOut<usize>) = build::get_dependencies(node, out, Some(edges), count);
    fn cuGraphNodeGetDependentNodes(node: Handle<NodeRef>, out: Out<Handle<NodeRef>>, count: InOut<usize>) = build::get_dependents(node, out, None, count);
    fn cuGraphNodeGetDependentNodes_v2(node: Handle<NodeRef>, out: Out<Handle<NodeRef>>, edges: Out<Edge>, count: InOut<usize>) = build::get_dependents(node, out, Some(edges), count);
    fn cuGraphNodeGetType(node: Handle<NodeRef>, out: Out<u32>) = build::get_kind(node, out);
    fn cuGraphKernelNodeGetAttribute(node: Handle<NodeRef>, attribute: u32, out: Out<[u64; 8]>) = build::kernel_attribute(node, attribute, out);
    fn cuGraphKernelNodeGetParams(node: Handle<NodeRef>, out: Out<KernelParametersV1>) = build::kernel_parameters_v1(node, out);
    fn cuGraphKernelNodeGetParams_v2(node: Handle<NodeRef>, out: Out<KernelParameters>) = build::kernel_parameters(node, out);
    fn cuGraphKernelNodeSetParams(node: Handle<NodeRef>, parameters: In<KernelParametersV1>) = build::change_kernel_v1(node, parameters);
    fn cuGraphKernelNodeSetParams_v2(node: Handle<NodeRef>, parameters: In<KernelParameters>) = build::change_kernel(node, parameters);
    fn cuGraphMemcpyNodeGetParams(node: Handle<NodeRef>, out: Out<Copy3d>) = build::copy_parameters_of(node, out);
    fn cuGraphMemcpyNodeSetParams(node: Handle<NodeRef>, parameters: In<Copy3d>) = build::change_copy(node, parameters);
    fn cuGraphMemsetNodeGetParams(node: Handle<NodeRef>, out: Out<SetParameters>) = build::set_parameters_of(node, out);
    fn cuGraphMemsetNodeSetParams(node: Handle<NodeRef>, parameters: In<SetParameters>) = build::change_set(node, parameters);
    fn cuGraphHostNodeGetParams(node: Handle<NodeRef>, out: Out<HostParameters>) = build::host_parameters_of(node, out);
    fn cuGraphHostNodeSetParams(node: Handle<NodeRef>, parameters: In<HostParameters>) = build::change_host(node, parameters);
    fn cuGraphChildGraphNodeGetGraph(node: Handle<NodeRef>, out: Out<Handle<Graph>>) = build::child_of(node, out);
    fn cuGraphEventRecordNodeGetEvent(node: Handle<NodeRef>, out: Out<Handle<Event>>) = build::recorded_event(node, out);
    fn cuGraphEventRecordNodeSetEvent(node: Handle<NodeRef>, event: Handle<Event>) = build::change_record(node, event);
    fn cuGraphEventWaitNodeGetEvent(node: Handle<NodeRef>, out: Out<Handle<Event>>) = build::awaited_event(node, out);
    fn cuGraphEventWaitNodeSetEvent(node: Handle<NodeRef>, event: Handle<Event>) = build::change_wait(node, event);
    fn cuGraphNodeSetParams(node: Handle<NodeRef>, parameters: In<NodeParameters>) = build::change_any(node, parameters);
    fn cuGraphDebugDotPrint(handle: Handle<Graph>, path: Text, _flags: u32) = dot::print(handle, path);

    fn cuGraphInstantiate(out: Out<Handle<Exec>>, handle: Handle<Graph>, node: Out<Handle<NodeRef>>, log: Out<c_char>, bytes: usize) = exec::instantiate_with_log(out, handle, node, log, bytes);
    fn cuGraphInstantiate_v2(out: Out<Handle<Exec>>, handle: Handle<Graph>, node: Out<Handle<NodeRef>>, log: Out<c_char>, bytes: usize) = exec::instantiate_with_log(out, handle, node, log, bytes);
    fn cuGraphInstantiateWithFlags(out: Out<Handle<Exec>>, handle: Handle<Graph>, flags: u64) = exec::instantiate_with_flags(out, handle, flags);
    fn cuGraphInstantiateWithParams(out: Out<Handle<Exec>>, handle: Handle<Graph>, parameters: InOut<InstantiateParameters>) = exec::instantiate_with_parameters(out, handle, parameters, DefaultStream::Legacy);
    fn cuGraphInstantiateWithParams_ptsz(out: Out<Handle<Exec>>, handle: Handle<Graph>, parameters: InOut<InstantiateParameters>) = exec::instantiate_with_parameters(out, handle, parameters, DefaultStream::PerThread);
    fn cuGraphUpload(handle: Handle<Exec>, stream: Handle<Stream>) = exec::upload_for(handle, stream, DefaultStream::Legacy);
    fn cuGraphUpload_ptsz(handle: Handle<Exec>, stream: Handle<Stream>) = exec::upload_for(handle, stream, DefaultStream::PerThread);
    fn cuGraphLaunch(handle: Handle<Exec>, stream: Handle<Stream>) = exec::launch(handle, stream, DefaultStream::Legacy);
    fn cuGraphLaunch_ptsz(handle: Handle<Exec>, stream: Handle<Stream>) = exec::launch(handle, stream, DefaultStream::PerThread);
    fn cuGraphExecDestroy(handle: Handle<Exec>) = exec::destroy(handle);
    fn cuGraphExecGetFlags(handle: Handle<Exec>, out: Out<u64>) = exec::get_flags(handle, out);
    fn cuGraphExecKernelNodeSetParams(handle: Handle<Exec>, node: Handle<NodeRef>, parameters: In<KernelParametersV1>) = exec::change_kernel_v1(handle, node, parameters);
    fn cuGraphExecKernelNodeSetParams_v2(handle: Handle<Exec>, node: Handle<NodeRef>, parameters: In<KernelParameters>) = exec::change_kernel(handle, node, parameters);
    fn cuGraphExecMemcpyNodeSetParams(handle: Handle<Exec>, node: Handle<NodeRef>, parameters: In<Copy3d>, context: Handle<Context>) = exec::change_copy(handle, node, parameters, context);
    fn cuGraphExecMemsetNodeSetParams(handle: Handle<Exec>, node: Handle<NodeRef>, parameters: In<SetParameters>, context: Handle<Context>) = exec::change_set(handle, node, parameters, context);
    fn cuGraphExecHostNodeSetParams(handle: Handle<Exec>, node: Handle<NodeRef>, parameters: In<HostParameters>) = exec::change_host(handle, node, parameters);
    fn cuGraphExecChildGraphNodeSetParams(handle: Handle<Exec>, node: Handle<NodeRef>, child: Handle<Graph>) = exec::change_child(handle, node, child);
    fn cuGraphExecEventRecordNodeSetEvent(handle: Handle<Exec>, node: Handle<NodeRef>, event: Handle<Event>) = exec::change_record(handle, node, event);
    fn cuGraphExecEventWaitNodeSetEvent(handle: Handle<Exec>, node: Handle<NodeRef>, event: Handle<Event>) = exec::change_wait(handle, node, event);
    fn cuGraphExecNodeSetParams(handle: Handle<Exec>, node: Handle<NodeRef>, parameters: In<NodeParameters>) = exec::change_any(handle, node, parameters);
    fn cuGraphNodeSetEnabled(handle: Handle<Exec>, node: Handle<NodeRef>, is_enabled: u32) = exec::set_enabled(handle, node, is_enabled);
    fn cuGraphNodeGetEnabled(handle: Handle<Exec>, node: Handle<NodeRef>, out: Out<u32>) = exec::get_enabled(handle, node, out);
    fn cuGraphExecUpdate(handle: Handle<Exec>, from: Handle<Graph>, node: Out<Handle<NodeRef>>, verdict: Out<u32>) = exec::update_v1(handle, from, node, verdict);
    fn cuGraphExecUpdate_v2(handle: Handle<Exec>, from: Handle<Graph>, out: Out<UpdateResult>) = exec::update(handle, from, out);

    fn cuStreamBeginCapture(stream: Handle<Stream>) = capture::begin(stream, 0, DefaultStream::Legacy);
    fn cuStreamBeginCapture_ptsz(stream: Handle<Stream>) = capture::begin(stream, 0, DefaultStream::PerThread);
    fn cuStreamBeginCapture_v2(stream: Handle<Stream>, mode: u32) = capture::begin(stream, mode, DefaultStream::Legacy);
    fn cuStreamBeginCapture_v2_ptsz(stream: Handle<Stream>, mode: u32) = capture::begin(stream, mode, DefaultStream::PerThread);
    fn cuStreamBeginCaptureToGraph(stream: Handle<Stream>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, edges: In<Edge>, count: usize, mode: u32) = capture::begin_into(stream, handle, Dependencies { list, edges, count }, mode, DefaultStream::Legacy);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Handle<Stream>, handle: Handle<Graph>, list: In<Handle<NodeRef>>, edges: In<Edge>, count: usize, mode: u32) = capture::begin_into(stream, handle, Dependencies { list, edges, count }, mode, DefaultStream::PerThread);
    fn cuStreamEndCapture(stream: Handle<Stream>, out: Out<Handle<Graph>>) = capture::end(stream, out, DefaultStream::Legacy);
    fn cuStreamEndCapture_ptsz(stream: Handle<Stream>, out: Out<Handle<Graph>>) = capture::end(stream, out, DefaultStream::PerThread);
    fn cuStreamIsCapturing(stream: Handle<Stream>, out: Out<u32>) = capture::is_capturing(stream, out, DefaultStream::Legacy);
    fn cuStreamIsCapturing_ptsz(stream: Handle<Stream>, out: Out<u32>) = capture::is_capturing(stream, out, DefaultStream::PerThread);
    fn cuStreamGetCaptureInfo(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>) = capture::info_v1(stream, status, id, DefaultStream::Legacy);
    fn cuStreamGetCaptureInfo_ptsz(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>) = capture::info_v1(stream, status, id, DefaultStream::PerThread);
    fn cuStreamGetCaptureInfo_v2(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<NodeRef>>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: None, count }, DefaultStream::Legacy);
    fn cuStreamGetCaptureInfo_v2_ptsz(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<NodeRef>>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: None, count }, DefaultStream::PerThread);
    fn cuStreamGetCaptureInfo_v3(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<NodeRef>>, edges: Out<*const Edge>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: Some(edges), count }, DefaultStream::Legacy);
    fn cuStreamGetCaptureInfo_v3_ptsz(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<NodeRef>>, edges: Out<*const Edge>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: Some(edges), count }, DefaultStream::PerThread);
    fn cuStreamUpdateCaptureDependencies(stream: Handle<Stream>, list: In<Handle<NodeRef>>, count: usize, flags: u32) = capture::update(stream, Dependencies::new(list, count), flags, DefaultStream::Legacy);
    fn cuStreamUpdateCaptureDependencies_ptsz(stream: Handle<Stream>, list: In<Handle<NodeRef>>, count: usize, flags: u32) = capture::update(stream, Dependencies::new(list, count), flags, DefaultStream::PerThread);
    fn cuStreamUpdateCaptureDependencies_v2(stream: Handle<Stream>, list: In<Handle<NodeRef>>, edges: In<Edge>, count: usize, flags: u32) = capture::update(stream, Dependencies { list, edges, count }, flags, DefaultStream::Legacy);
    fn cuStreamUpdateCaptureDependencies_v2_ptsz(stream: Handle<Stream>, list: In<Handle<NodeRef>>, edges: In<Edge>, count: usize, flags: u32) = capture::update(stream, Dependencies { list, edges, count }, flags, DefaultStream::PerThread);
    fn cuThreadExchangeStreamCaptureMode(mode: InOut<u32>) = capture::exchange_mode(mode);

    fn cuUserObjectCreate(out: Out<Handle<UserObject>>, data: *mut c_void, destroy: Option<HostFunction>, count: u32, flags: u32) = objects::create(out, data, destroy, count, flags);
    fn cuUserObjectRetain(object: Handle<UserObject>, count: u32) = objects::retain(object, count);
    fn cuUserObjectRelease(object: Handle<UserObject>, count: u32) = objects::release(object, count);
    fn cuGraphRetainUserObject(handle: Handle<Graph>, object: Handle<UserObject>, count: u32, flags: u32) = objects::graph_retain(handle, object, count, flags);
    fn cuGraphReleaseUserObject(handle: Handle<Graph>, object: Handle<UserObject>, count: u32) = objects::graph_release(handle, object, count);
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, out: Out<u64>) = memory::attribute(device, attribute, out);
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>) = memory::set_attribute(device, attribute, value);
    fn cuDeviceGraphMemTrim(device: i32) = memory::trim(device);
}
