-- The health of a GpuFunction, for resource.customizations.health.weir.dev_GpuFunction of ConfigMap argocd-cm.
local health = { status = "Progressing", message = "weir-control has not said yet how it stands" }
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
      -- Somebody wants it so: its requests go Knative's way.
      health.status = "Suspended"
    else
      health.status = "Degraded"
    end
  end
end
return health
