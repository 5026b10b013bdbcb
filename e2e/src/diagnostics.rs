//! Prints what a failed scenario left: the cluster's status, events, pods, and the logs of the members and the
//! operator.

use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};

use crate::test::{Test, describe};

/// Prints everything.
pub(crate) async fn print(test: &Test) {
    println!("  --- clusters");
    if let Ok(clusters) = test.clusters().list(&ListParams::default()).await {
        for cluster in clusters {
            println!("  {}: {}", cluster.name_any(), describe(&cluster));
            for member in cluster.status.unwrap_or_default().member_statuses {
                println!(
                    "    {} {:?} {:?} {}",
                    member.name, member.role, member.health, member.message
                );
            }
        }
    }
    if let Ok(backups) = test.backups().list(&ListParams::default()).await {
        for backup in backups {
            let status = serde_json::to_string(&backup.status).unwrap_or_default();
            println!("  EtcdBackup {}: {status}", backup.name_any());
        }
    }
    println!("  --- events");
    let events: Api<Event> = Api::namespaced(test.client.clone(), &test.namespace);
    if let Ok(mut events) = events.list(&ListParams::default()).await {
        events
            .items
            .sort_by_key(|event| event.metadata.creation_timestamp.clone().map(|time| time.0));
        for event in events.items.iter().rev().take(40).rev() {
            let about = event.involved_object.name.clone().unwrap_or_default();
            println!(
                "  {} {about}: {}",
                event.reason.clone().unwrap_or_default(),
                event.message.clone().unwrap_or_default()
            );
        }
    }
    println!("  --- pods");
    if let Ok(pods) = test.pods().list(&ListParams::default()).await {
        for pod in pods {
            let name = pod.name_any();
            let status = pod.status.clone().unwrap_or_default();
            let node = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default();
            println!(
                "  {name} on {node}: {} {}",
                status.phase.unwrap_or_default(),
                serde_json::to_string(&status.container_statuses).unwrap_or_default()
            );
            let spec = pod.spec.unwrap_or_default();
            let containers = spec.init_containers.into_iter().flatten().chain(spec.containers);
            for container in containers {
                let options = LogParams {
                    container: Some(container.name.clone()),
                    tail_lines: Some(15),
                    ..LogParams::default()
                };
                match test.pods().logs(&name, &options).await {
                    Ok(log) => log.lines().for_each(|line| println!("    {} | {line}", container.name)),
                    Err(error) => println!("    no log of {}: {error}", container.name),
                }
            }
        }
    }
    println!("  --- the operator");
    test.environment
        .operator_log()
        .await
        .lines()
        .for_each(|line| println!("    | {line}"));
}
