-- The health of a GpuFunction, for resource.customizations.health.weir.dev_GpuFunction of ConfigMap argocd-cm.
local health = { status = "Progressing", message = "weir-control has not written a status yet" }
if obj.status == nil or obj.status.conditions == nil then
  return health
end
for _, condition in ipairs(obj.status.conditions) do
  if condition.type == "Ready" then
    health.message = condition.message
    if condition.status == "True" then
      health.status = "Healthy"
    elseif condition.status == "Unknown" or condition.reason == "NotInitialized" or condition.reason == "Attaching"
      or condition.reason == "Waiting" or condition.reason == "Deploying" then
      health.status = "Progressing"
    elseif condition.reason == "DetachedByHand" or condition.reason == "Leaving" then
      -- Detached on purpose: its requests take Knative's own path.
      health.status = "Suspended"
    else
      health.status = "Degraded"
    end
  end
end
return health
