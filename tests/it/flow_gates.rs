//! Approvals by people that agents cannot get rid of.

use std::fs;

use crate::flow_run::{Site, line, workflow};

#[test]
fn an_agent_cannot_remove_the_approval_that_its_workflow_required() {
    let script = "sed -i '/human-colab/d' $SWARM_RECORD/workflow.yaml; echo x > x.txt\n\
                  swarm flow emit --to owner-close --artifact x.txt";
    let site = Site::new(&line(script, "      human-colab: true\n"));
    assert_eq!(site.run(), "waiting");
    let workflow = fs::read_to_string(site.dir().join("record/workflow.yaml")).expect("there");
    assert!(!workflow.contains("human-colab"), "{workflow}");
    assert_eq!(site.reason("build"), "handoff-approval");
    site.flow("approve", &["build"]).is(0, "approved: build\n", "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
}

#[test]
fn an_agent_cannot_lead_its_workflow_around_an_approval() {
    // The first agent adds an edge that leads past the node whose handoff needs approval.
    let script = "cp \"$SWARM_RECORD/workflow.yaml\" $SWARM_RECORD/before.yaml\n\
                  echo '    - {from: owner-intake, to: owner-close}' >> $SWARM_RECORD/workflow.yaml\n\
                  echo x > $SWARM_RECORD/x.md; swarm flow emit --to owner-close --artifact $SWARM_RECORD/x.md";
    let nodes = [
        ("owner-intake", "owner", "", script),
        ("build", "dev", "      human-colab: true\n", "exit 1"),
        ("owner-close", "owner", "", "swarm flow emit --close"),
    ];
    let site = Site::new(&workflow(&nodes, &[("owner-intake", "build"), ("build", "owner-close")]));
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.reason("owner-intake"), "handoff-approval");
    let said = site.flow("status", &[]).ok();
    assert!(said.contains("to owner-close: the workflow was changed here after the flow started"), "{said}");
}
